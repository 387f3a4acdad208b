"""What a parameter of a hedging policy may be."""

from functools import partial

from policies import params

check_number = partial(params.check_number, "hedging")
check_positive = partial(params.check_positive, "hedging")
