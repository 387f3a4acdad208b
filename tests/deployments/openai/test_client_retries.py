"""Requests that are another try of their client's are recognised, and counted once."""

from deployments.openai.client_retries import MAX_REMEMBERED, REMEMBERED_S, ClientRetries, ToldBy
from tests.deployments.host_dialogue import FixedClock
from tests.tables import for_each


class Intake:
    """Where requests come in, the clock that it goes by, and what it has counted."""

    def __init__(self) -> None:
        self.clock = FixedClock()
        self.counted: list[ToldBy] = []
        self._retries = ClientRetries(self.clock.now_s, self.counted.append)

    def comes(self, key: str = "", *, retry_count: str = "", tenant: str = "") -> None:
        self._retries.note(retry_count, tenant, key)


HEADER, KEY = ToldBy.HEADER, ToldBy.KEY


@for_each(
    ("requests", "counted"),
    [
        ([{}, {}, {}], []),
        ([{"retry_count": count} for count in "012"], [HEADER, HEADER]),
        ([{"key": key} for key in "aba"], [KEY]),
        ([{"key": "a", "retry_count": count} for count in "01"], [HEADER]),
        ([{"key": "a", "tenant": tenant} for tenant in ("red", "blue")], []),
        *(([{"retry_count": odd}], []) for odd in ("-1", "one", "1.5", " ", "00")),
    ],
    ids=[
        *("says nothing", "counts its tries", "a key comes again", "both tell", "two tenants have the same key"),
        *(f"a count that is no number: {odd!r}" for odd in ("-1", "one", "1.5", " ", "00")),
    ],
)
def test_a_request_is_another_try_when_its_library_or_its_key_says_so(
    requests: list[dict[str, str]], counted: list[ToldBy]
) -> None:
    """A count that is no number says nothing: no request fails because of it."""
    intake = Intake()
    for each in requests:
        intake.comes(**each)
    assert intake.counted == counted


def test_a_key_is_forgotten_after_a_while() -> None:
    intake = Intake()
    intake.comes("a")
    intake.clock.time_s = REMEMBERED_S + 1
    intake.comes("a")
    assert intake.counted == []


def test_the_oldest_of_too_many_keys_is_forgotten() -> None:
    intake = Intake()
    for number in range(MAX_REMEMBERED + 1):
        intake.comes(str(number))
    intake.comes("0")
    intake.comes(str(MAX_REMEMBERED))

    assert intake.counted == [KEY]
