"""Whole conversations, and whether gateways agree on whom to give up."""

from collections.abc import Mapping

from loadtests.results.analysis import analyse
from loadtests.results.metrics import ALL, MetricValue, Window
from loadtests.results.slo import ClassSlo
from tests.loadtests.run_tables import RequestRow, run_table


def of(*requests: RequestRow) -> Mapping[str, MetricValue]:
    return analyse(run_table(*requests), {"chat": ClassSlo(ttft_s=1.0)}, Window(from_s=10, until_s=60))[ALL]


def turn(logical_request: int, session: int, at_s: float = 20.0, *, ttft_s: float = 0.5) -> RequestRow:
    return RequestRow(
        logical_request=logical_request, session=session, at_s=at_s, ttft_s=ttft_s, e2e_s=2.0, output_tokens=9
    )


def shed(logical_request: int, gateway: int, retry_index: int = 0, *, is_last: bool = True) -> RequestRow:
    return RequestRow(
        logical_request=logical_request,
        at_s=20.0,
        e2e_s=0.0,
        outcome="refused",
        reason="shed",
        attempts=0,
        gateway=gateway,
        retry_index=retry_index,
        is_last=is_last,
    )


def kept(logical_request: int, gateway: int, retry_index: int = 0) -> RequestRow:
    return RequestRow(
        logical_request=logical_request,
        at_s=20.0,
        ttft_s=0.5,
        e2e_s=1.0,
        output_tokens=9,
        gateway=gateway,
        retry_index=retry_index,
    )


def test_a_conversation_is_good_when_all_of_it_is() -> None:
    found = of(
        *(turn(logical_request, 0) for logical_request in range(4)),
        *(turn(logical_request, 4, ttft_s=0.5 + 0.2 * logical_request) for logical_request in range(4, 8)),
        turn(8, 8),
        RequestRow(logical_request=9, session=8, at_s=20, outcome="abandoned", attempts=0),
        turn(10, -1, ttft_s=9.0),
    )

    assert found["session_goodput_fraction"] == MetricValue(value=1 / 3, samples=3)


def test_a_conversation_counts_by_when_it_began() -> None:
    found = of(turn(0, 0, 5.0), turn(1, 0, 20.0), turn(2, 2, 59.0), turn(3, 2, 80.0, ttft_s=5.0))

    assert found["session_goodput_fraction"] == MetricValue(value=0.0, samples=1)


def test_what_is_shed_is_a_fraction_of_all_requests() -> None:
    found = of(
        shed(0, 0, is_last=False),
        shed(0, 1, 1),
        kept(1, 0),
        kept(2, 1),
        RequestRow(logical_request=3, at_s=20, outcome="abandoned"),
    )

    assert found["shed_fraction"] == MetricValue(value=0.5, samples=4)
    assert found["sends_per_sent_request"] == MetricValue(value=4 / 3, samples=3)


def test_the_spread_is_between_the_gateways() -> None:
    found = of(shed(0, 0), kept(1, 0), shed(2, 1), shed(3, 1), kept(4, 2), kept(5, 2))

    assert found["shed_spread"] == MetricValue(value=1.0, samples=3)


def test_gateways_that_answer_the_same_are_counted_where_somebody_asked_two() -> None:
    found = of(
        *(shed(0, 0, is_last=False), shed(0, 1, 1)),
        *(shed(1, 0, is_last=False), kept(1, 1, 1)),
        *(shed(2, 0, is_last=False), kept(2, 0, 1)),
        *(kept(3, 0), kept(4, 1)),
    )

    assert found["same_answer_fraction"] == MetricValue(value=0.5, samples=2)
