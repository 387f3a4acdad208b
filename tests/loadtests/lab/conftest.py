from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def short_floods() -> Iterator[None]:
    """A capacity that is a little too low, for a fifth of the work; the same for all that is compared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loadtests.lab.capacity.FLOOD_S", 4.0)
        yield
