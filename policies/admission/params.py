"""What a parameter of an admission policy may be."""

from functools import partial

from policies import params

check_choice = partial(params.check_choice, "admission")
check_number = partial(params.check_number, "admission")
check_positive = partial(params.check_positive, "admission")
