"""Panels that stand on several dashboards."""

from deployments.dashboards.panels import Panel
from deployments.dashboards.queries import BY_REQUEST, gauge, one, rate, ratio

MET = rate("lane_slo_total", "lane, slo", 'met="true",lane=~"$lane"')
ANSWERED = rate("lane_slo_total", "lane, slo", 'lane=~"$lane"')
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
SLOS = Panel(
    title="SLOs met, by lane",
    meaning="Answers within their lane's SLO; refused and failed ones count as missed.",
    unit="percentunit",
    queries=one(ratio(MET, ANSWERED), "{{lane}} {{slo}}"),
)
QUEUE_WORK = Panel(
    title="Work that waits, by class",
    meaning="Service-seconds of one replica; over the number of replicas it is how long the queue takes.",
    unit="s",
    queries=one(gauge("queue_work_seconds", "class"), "{{class}}"),
    is_stacked=True,
)
QUEUE_AGE = Panel(
    title="Oldest request that waits",
    meaning="A queue that moves has a low one, however long it is.",
    unit="s",
    queries=one(gauge("queue_oldest_age_seconds", "class, queue", over="max"), "{{class}} {{queue}}"),
)
SHED_FRACTION = Panel(
    title="Shed fraction, by gateway",
    meaning="Part of the work that is given up. Gateways that share a load coordinator say the same.",
    unit="percentunit",
    queries=one(gauge("shed_fraction", "gateway", over="max"), "{{gateway}}"),
)
WORK_AMPLIFICATION = Panel(
    title="Work amplification",
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
