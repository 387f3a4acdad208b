"""What is given up, and is it the right thing?"""

from deployments.dashboards.panels import Dashboard, Panel
from deployments.dashboards.queries import BY_REQUEST, Query, gauge, one, quantile, rate, ratio
from deployments.dashboards.shared_panels import (
    OUTCOMES,
    QUEUE_AGE,
    QUEUE_WORK,
    REASONS,
    SHED_FRACTION,
    SLOS,
    WORK_AMPLIFICATION,
)

OVERLOAD = Dashboard(
    name="overload",
    title="overload",
    question="There is more than can be served: what is given up, by whom, and does the rest meet its SLOs?",
    labels=("model", "lane", "class"),
    panels=(
        OUTCOMES,
        REASONS,
        SHED_FRACTION,
        QUEUE_WORK,
        QUEUE_AGE,
        SLOS,
        Panel(
            title="Served, by class",
            meaning="Completed / all. The classes that matter less are to give way first.",
            unit="percentunit",
            queries=one(
                ratio(
                    rate("requests_total", "class", f'outcome="completed",{BY_REQUEST}'),
                    rate("requests_total", "class", BY_REQUEST),
                ),
                "{{class}}",
            ),
        ),
        Panel(
            title="Wait before dispatch, p99",
            meaning="By class: what waits longer than its deadline was let in for nothing.",
            unit="s",
            queries=one(quantile(0.99, "request_queue_time_seconds", "class"), "{{class}}"),
        ),
        Panel(
            title="Degraded answers",
            meaning="Served more cheaply than was asked for.",
            unit="reqps",
            queries=one(rate("degraded_total", "kind", 'class=~"$class"'), "{{kind}}"),
            is_stacked=True,
        ),
        Panel(
            title="Requests that are retries",
            meaning="By clients after refusals, by gateways after losses. If it grows with refusals, it feeds them.",
            unit="reqps",
            queries=(
                Query(expression=rate("client_retries_total", "link"), legend="clients, linked by {{link}}"),
                Query(expression=rate("retries_total", "reason"), legend="gateways, {{reason}}"),
            ),
        ),
        WORK_AMPLIFICATION,
        Panel(
            title="The load coordinator",
            meaning="Reports that it answered, and those that were lost: gateways shed each for itself then.",
            unit="ops",
            queries=(
                Query(expression=rate("load_coordinator_exchanges_total", "result"), legend="{{result}}"),
                Query(expression=gauge("requests_open", "gateway"), legend="open at {{gateway}}"),
            ),
        ),
    ),
)
