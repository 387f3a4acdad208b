"""Does each lane meet its SLOs?"""

from deployments.dashboards.panels import Dashboard, Panel
from deployments.dashboards.queries import BY_REQUEST, Query, gauge, one, quantile, rate
from deployments.dashboards.shared_panels import QUEUE_AGE, QUEUE_WORK, SLOS, WORK_AMPLIFICATION

LANES = Dashboard(
    name="lanes",
    title="lanes",
    question="Does each lane meet its SLOs, and are requests in the right one?",
    labels=("model", "lane", "class"),
    panels=(
        Panel(
            title="Requests by lane",
            meaning="Answers a second.",
            unit="reqps",
            queries=one(rate("requests_total", "lane", BY_REQUEST), "{{lane}}"),
            is_stacked=True,
        ),
        SLOS,
        Panel(
            title="Time to first token, p99",
            meaning="By lane and class.",
            unit="s",
            queries=one(quantile(0.99, "time_to_first_token_seconds", "lane, class"), "{{lane}} {{class}}"),
        ),
        Panel(
            title="Wait before dispatch, p99",
            meaning="At the gateway. What is left of the time to the first token is the replicas'.",
            unit="s",
            queries=one(quantile(0.99, "request_queue_time_seconds", "lane, class"), "{{lane}} {{class}}"),
        ),
        QUEUE_WORK,
        QUEUE_AGE,
        Panel(
            title="Latency for each second of work",
            meaning="E2E / service time alone on a replica. Fair lanes have similar ones. Needs an engine profile.",
            unit="none",
            queries=one(quantile(0.9, "request_slowdown", "lane"), "{{lane}} p90"),
        ),
        Panel(
            title="Variation of decode times",
            meaning="Variance / mean squared: 1 is exponential. With the tail grows the wait of all behind it.",
            unit="none",
            queries=one(
                f"({rate('request_decode_time_seconds_squared_total', 'lane', BY_REQUEST)}"
                f" * {rate('request_decode_time_seconds_count', 'lane', BY_REQUEST)})"
                f" / {rate('request_decode_time_seconds_sum', 'lane', BY_REQUEST)} ^ 2 - 1",
                "{{lane}}",
            ),
        ),
        Panel(
            title="Demotions",
            meaning="Answers that outgrew their lane.",
            unit="reqps",
            queries=one(rate("lane_demotions_total", "lane", 'lane=~"$lane"'), "{{lane}}"),
        ),
        Panel(
            title="Lane borders",
            meaning="Shortest prompt of each lane, where they adapt.",
            unit="none",
            queries=one(gauge("lane_border_tokens", "lane", over="max"), "{{lane}}"),
        ),
        Panel(
            title="Drift of prompt lengths",
            meaning="Distance to what the borders were set for, 0 to 1. Lanes are off where the guard says so.",
            unit="none",
            queries=(
                Query(expression=gauge("prompt_drift", over="max"), legend="drift"),
                Query(expression=gauge("lanes_on", over="min"), legend="lanes on"),
            ),
        ),
        WORK_AMPLIFICATION,
    ),
)
