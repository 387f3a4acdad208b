"""Why are the slowest requests slow?"""

from deployments.dashboards.panels import Dashboard, Panel
from deployments.dashboards.queries import BY_REQUEST, Query, gauge, one, quantile, quantiles, rate, ratio
from deployments.dashboards.shared_panels import WORK_AMPLIFICATION

STAGE_MEAN = ratio(rate("request_stage_seconds_sum", "stage"), rate("request_stage_seconds_count", "stage"))
BROKEN, GATEWAY_ERROR = f'outcome="failed",{BY_REQUEST}', 'status=~"5.."'

TAIL = Dashboard(
    name="tail",
    title="tail",
    question="Why are the slowest requests slow, and what do hedges and retries do about it?",
    labels=("model", "lane", "class"),
    panels=(
        Panel(
            title="Time to first token",
            meaning="How far the tail is from the middle.",
            unit="s",
            queries=quantiles("time_to_first_token_seconds", 0.5, 0.9, 0.99, 0.999),
        ),
        Panel(
            title="Longest gap between tokens",
            meaning="What a reader sees as a stall.",
            unit="s",
            queries=quantiles("request_longest_gap_seconds", 0.5, 0.99, 0.999),
        ),
        Panel(
            title="End to end",
            meaning="From arrival to the last token.",
            unit="s",
            queries=quantiles("e2e_request_latency_seconds", 0.5, 0.9, 0.99, 0.999),
        ),
        Panel(
            title="Where the time goes",
            meaning="Mean of each stage of a request, over those that came to it.",
            unit="s",
            queries=one(STAGE_MEAN, "{{stage}}"),
            width=12,
            is_stacked=True,
        ),
        Panel(
            title="Where the time goes, p99",
            meaning="Of each stage by itself: the sum is more than any request took.",
            unit="s",
            queries=one(quantile(0.99, "request_stage_seconds", "stage", ""), "{{stage}}"),
            width=12,
        ),
        Panel(
            title="Hedges",
            meaning="Second attempts / attempts. The budget is 5% unless the policy says otherwise.",
            unit="percentunit",
            queries=one(ratio(rate("attempts_total", where='hedge="true"'), rate("attempts_total")), "hedges"),
        ),
        Panel(
            title="Races",
            meaning="Hedged attempts that have a winner, by whether it was the hedge.",
            unit="reqps",
            queries=one(rate("hedge_races_total", "hedge_won"), "hedge won: {{hedge_won}}"),
        ),
        Panel(
            title="Prompt tokens computed twice",
            meaning="At the most: prompts of attempts that were beaten.",
            unit="none",
            queries=one(rate("superseded_prompt_tokens_total"), "tokens/s"),
        ),
        Panel(
            title="Cancels",
            meaning="From asking for an attempt's end to its end.",
            unit="s",
            queries=quantiles("cancel_seconds", 0.5, 0.99, where=""),
        ),
        Panel(
            title="Ejections",
            meaning="Times that gateways ejected a replica.",
            unit="cpm",
            queries=one(f"60 * {rate('ejections_total', 'pool, reason')}", "{{pool}} {{reason}}"),
        ),
        Panel(
            title="Losses made good",
            meaning="Tried again before the first token, gone on with after it, stopped for one that matters more.",
            unit="reqps",
            queries=(
                Query(expression=rate("retries_total", "reason"), legend="retried, {{reason}}"),
                Query(expression=rate("resumptions_total"), legend="resumed"),
                Query(expression=rate("preemptions_total"), legend="preempted"),
            ),
        ),
        Panel(
            title="Latency for each second of work",
            meaning="E2E / service time alone on a replica. Needs an engine profile.",
            unit="none",
            queries=quantiles("request_slowdown", 0.5, 0.99),
        ),
        Panel(
            title="How unlike requests are",
            meaning="95th percentile over median, and standard deviation over mean, of prompts, answers and arrivals.",
            unit="none",
            queries=(
                Query(expression=gauge("work_p95_over_p50", "of", over="max"), legend="p95 / p50, {{of}}"),
                Query(expression=gauge("work_sd_over_mean", "of", over="max"), legend="sd / mean, {{of}}"),
            ),
        ),
        WORK_AMPLIFICATION,
        Panel(
            title="Failures",
            meaning="Answers that broke, and gateway errors.",
            unit="reqps",
            queries=(
                Query(expression=rate("requests_total", "reason", BROKEN), legend="{{reason}}"),
                Query(
                    expression=rate("http_errors_total", "status, code", GATEWAY_ERROR), legend="{{status}} {{code}}"
                ),
            ),
        ),
    ),
)
