"""What a parameter of an ejection policy may be."""

from collections.abc import Sequence
from functools import partial

from policies import params
from policies.decisions import EjectionReason
from policies.errors import ConfigError

check_number = partial(params.check_number, "ejection")
check_positive = partial(params.check_positive, "ejection")
SIGNS = tuple(reason.value for reason in EjectionReason)


def check_signs(value: Sequence[str]) -> frozenset[EjectionReason]:
    """What replicas are looked at for: at least one of the reasons to eject, none of them twice.

    Raises:
        ConfigError: It is something else.
    """
    is_list = isinstance(value, list | tuple) and len(value) > 0
    if not is_list or not all(each in SIGNS for each in value) or len(set(value)) < len(value):
        raise ConfigError("policies.ejection.params.signs", value, f"a list of some of {list(SIGNS)}, each once")
    return frozenset(EjectionReason(each) for each in value)
