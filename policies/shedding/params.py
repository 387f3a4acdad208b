"""What a parameter of a shedding policy may be."""

from functools import partial

from policies import params

check_number = partial(params.check_number, "shedding")
check_positive = partial(params.check_positive, "shedding")
