"""Panels that stand on several dashboards."""

from deployments.dashboards.panels import BY_REQUEST, Panel, gauge, one, rate, ratio

KEPT = rate("lane_promises_total", "lane, promise", 'kept="true",lane=~"$lane"')
PROMISED = rate("lane_promises_total", "lane, promise", 'lane=~"$lane"')
OUTCOMES = Panel(
    title="Requests by outcome",
    meaning="Answers a second. Refusals are early and on purpose; failures broke in the middle of an answer.",
    unit="reqps",
    queries=one(rate("requests_total", "outcome", BY_REQUEST), "{{outcome}}"),
    is_stacked=True,
)
REASONS = Panel(
    title="Refusals and sheds by reason",
    meaning="Why requests were not served: the policies' reasons, and what went wrong.",
    unit="reqps",
    queries=one(rate("requests_total", "reason", f'outcome!="completed",{BY_REQUEST}'), "{{reason}}"),
    is_stacked=True,
)
PROMISES = Panel(
    title="Promises kept, by lane",
    meaning="Answers within their lane's SLO; refused and failed ones count as broken promises.",
    unit="percentunit",
    queries=one(ratio(KEPT, PROMISED), "{{lane}} {{promise}}"),
)
QUEUE_WORK = Panel(
    title="Work that waits, by class",
    meaning="Service-seconds of one replica; over the number of replicas it is how long the line takes.",
    unit="s",
    queries=one(gauge("queue_work_seconds", "class"), "{{class}}"),
    is_stacked=True,
)
QUEUE_AGE = Panel(
    title="Oldest request that waits",
    meaning="A line that moves has a low one, however long it is.",
    unit="s",
    queries=one(gauge("queue_oldest_age_seconds", "class, line", over="max"), "{{class}} {{line}}"),
)
SHED_LEVEL = Panel(
    title="Shed level, by gateway",
    meaning="Part of the work that is given up. Gateways that share a ledger say the same.",
    unit="percentunit",
    queries=one(gauge("shed_fraction", "gateway", over="max"), "{{gateway}}"),
)
DEBT = Panel(
    title="Computational debt",
    meaning="Work of all attempts for each second of work that the answers needed: 1 is the optimum; hedges, retries, "
    "preemptions and abandoned requests add to it. Needs an engine profile.",
    unit="none",
    queries=one(
        ratio(
            rate("work_done_seconds_total", "lane", BY_REQUEST), rate("work_needed_seconds_total", "lane", BY_REQUEST)
        ),
        "{{lane}}",
    ),
)
