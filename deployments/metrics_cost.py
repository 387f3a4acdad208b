"""What counting a request and the account of its time cost: microseconds of one core for each request.

``python -m deployments.metrics_cost [--requests N] [--chunks N]``

Each round does what a gateway does for one request with a handoff, and nothing else. The answer comes in as many chunks
as it has tokens unless said otherwise: the busier replicas are, the fewer there are. The median is shown; other work on
the machine only adds to it.
"""

import argparse
import asyncio
import statistics
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from cluster.clock import MonotonicClock
from cluster.latency_budget import LatencyBudget
from deployments.config import TracingConfig
from deployments.gateway.open_request import ServeOpenRequest
from deployments.gateway.tracing import FinishedRequest, NoTracer, Tracer, tracer_for
from deployments.telemetry.metrics import GatewayMetrics
from deployments.telemetry.work.work_meter import AttemptWork
from engines.contract import EngineTimes
from policies.views import RequestView, Role
from routing.request.effects import Outcome, OutcomeKind
from routing.sizing.geometry import ServiceRates

UNREACHABLE = "http://127.0.0.1:9/v1/traces"
"""Nobody listens there: what is measured is the gateway's share, and a batch that is lost costs no less."""
REQUESTS = 20_000
TOKENS = 64
COMPLETED = Outcome(kind=OutcomeKind.COMPLETED)
RATES = ServiceRates(step_s=0.006, new_token_s=2e-5, context_token_s=4e-8)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m deployments.metrics_cost", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"for each line of the table; {REQUESTS:,}")
    parser.add_argument("--chunks", type=int, default=TOKENS, help=f"that an answer of {TOKENS} tokens comes in")
    options = parser.parse_args()
    table = Table("tracing", "microseconds a request")
    for name, fraction in (("off", None), ("no request", 0.0), ("1 in 100", 0.01), ("every request", 1.0)):
        tracing = None if fraction is None else TracingConfig(endpoint=UNREACHABLE, sampled_fraction=fraction)
        tracer: Tracer = NoTracer() if tracing is None else tracer_for(tracing, "gateway")
        table.add_row(name, f"{asyncio.run(_mean_us(tracer, options.requests, options.chunks)):.1f}")
        tracer.close()
    Console().print(table)


async def _mean_us(tracer: Tracer, num_requests: int, num_chunks: int) -> float:
    """Of many means of a hundred requests the median: a request alone is too short to be timed."""
    clock, request = MonotonicClock(), _request(tracer, num_chunks)
    means_us = []
    for _ in range(max(1, num_requests // 100)):
        began_s = clock.now_s()
        for _ in range(100):
            request()
        means_us.append(1e6 * (clock.now_s() - began_s) / 100)
    return statistics.median(means_us)


def _work(stage: Role, output_tokens: int) -> AttemptWork:
    return AttemptWork(stage=stage, prompt_tokens=100, computed_tokens=100, output_tokens=output_tokens)


def _request(tracer: Tracer, num_chunks: int) -> Callable[[], None]:
    """What is done for one request, from its coming to its answer's having left."""
    now_s, metrics = MonotonicClock().now_s, GatewayMetrics(RATES)
    view = RequestView(request_id="q", prompt_tokens=100, max_output_tokens=50, arrival_s=0.0, deadline_s=60.0)
    prefill, decode = EngineTimes(prefill_s=1e-7), EngineTimes(kv_transfer_s=1e-7)
    opened = ServeOpenRequest(view=view, payload=b"", budget=LatencyBudget(now_s))
    opened.stream.finish(COMPLETED)
    opened.committed, opened.first_token_at_s, opened.output_tokens = "q.1", now_s(), TOKENS

    def request() -> None:
        budget = opened.budget = LatencyBudget(now_s)
        budget.parsed()
        budget.tokenized()
        budget.arrived()
        budget.admitted()
        for attempt_id, replica_id, kv_from, engine in (("q.0", "p", None, prefill), ("q.1", "d", "q.0", decode)):
            budget.sent(attempt_id, replica_id, kv_from)
            budget.accepted(attempt_id, replica_id)
            budget.took(attempt_id, engine)
            budget.ended(attempt_id)
        budget.committed("q.1")
        for _ in range(num_chunks):
            budget.gave_out()
        budget.answered()
        timeline = budget.timeline()
        metrics.count_times(opened.lane, timeline, prompt_tokens=100, cached_tokens=0, output_tokens=TOKENS)
        for stage, output_tokens in ((Role.PREFILL, 0), (Role.DECODE, TOKENS)):
            metrics.count_attempt(opened.lane, view.priority, _work(stage, output_tokens))
        metrics.count_answer(opened.answered(COMPLETED, now_s()))
        tracer.record(FinishedRequest(opened=opened, operation="chat", model="tiny", headers={}, timeline=timeline))

    return request


if __name__ == "__main__":
    main()
