"""Is it well?"""

from deployments.dashboards.panels import Dashboard, Panel
from deployments.dashboards.queries import BY_REQUEST, Query, gauge, quantiles, rate
from deployments.dashboards.shared_panels import OUTCOMES, QUEUE_AGE, QUEUE_WORK, REASONS, SHED_FRACTION, SLOS

OVERVIEW = Dashboard(
    name="overview",
    title="overview",
    question="Is it well? Traffic, SLOs, latencies, and what waits or is refused.",
    labels=("model", "lane", "class"),
    panels=(
        OUTCOMES,
        SLOS,
        REASONS,
        Panel(
            title="Time to first token",
            meaning="From arrival at a gateway to its first token.",
            unit="s",
            queries=quantiles("time_to_first_token_seconds", 0.5, 0.9, 0.99),
        ),
        Panel(
            title="Time per output token",
            meaning="(Last token - first) / (tokens - 1) of each answer.",
            unit="s",
            queries=quantiles("request_time_per_output_token_seconds", 0.5, 0.9, 0.99),
        ),
        Panel(
            title="End to end",
            meaning="From arrival to the last token, of completed requests.",
            unit="s",
            queries=quantiles("e2e_request_latency_seconds", 0.5, 0.9, 0.99),
        ),
        QUEUE_WORK,
        QUEUE_AGE,
        SHED_FRACTION,
        Panel(
            title="Tokens",
            meaning="Prompts of requests that got a first token, what of them was cached, and tokens given out.",
            unit="none",
            queries=(
                Query(expression=rate("prompt_tokens_total", where=BY_REQUEST), legend="prompt"),
                Query(expression=rate("cached_prompt_tokens_total", where=BY_REQUEST), legend="of which cached"),
                Query(expression=rate("request_generation_tokens_sum", where=BY_REQUEST), legend="generated"),
            ),
        ),
        Panel(
            title="Replicas up",
            meaning="By pool; and how many gateways say what they count.",
            unit="none",
            queries=(
                Query(expression=gauge("replicas", "pool", over="max"), legend="{{pool}}"),
                Query(expression=f"count({gauge('requests_open', 'gateway')})", legend="gateways"),
            ),
        ),
        Panel(
            title="Open and waiting requests",
            meaning="Open: not answered, or with attempts that have not ended. Waiting: for a replica.",
            unit="none",
            queries=(
                Query(expression=gauge("requests_open"), legend="open"),
                Query(expression=gauge("requests_waiting"), legend="waiting"),
            ),
        ),
    ),
)
