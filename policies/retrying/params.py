"""What a parameter of a retrying policy may be."""

from functools import partial

from policies import params

check_number = partial(params.check_number, "retrying")
check_positive = partial(params.check_positive, "retrying")
