"""``metrics.md``: every metric of a gateway's page."""

from collections.abc import Iterator

from cluster.latency_budget import LatencyStage
from deployments.reference.counted import families, name_of
from deployments.reference.markdown import code, from_docstring, page, table
from deployments.telemetry.aggregation import GATEWAY_LABEL
from deployments.telemetry.renamed_metrics import OLD_NAMES
from policies.decisions import EjectionReason, Reason
from policies.views import Priority
from routing.request.effects import OutcomeKind

INTRODUCTION = """
`GET /metrics` of any gateway, for Prometheus. Units are in the names: seconds, tokens, bytes; fractions go from 0
to 1. Nothing is counted per token.

What has the label `replica` and no `gateway` is what replicas report twice a second. All else counts for each
gateway and has the label `gateway` besides; the page has the counts of all gateways, whichever is asked, the
others' at most 2 s old (`spillway_gateways`, which has no such label, says of how many). `model` is the model's id;
error responses and reloads belong to none. Ray's metrics agents
export the same, but for `spillway_gateways`, as `ray_spillway_...`. Dashboards and alert rules:
[dashboards](../how-to/dashboards.md); what happens to a page when a gateway is gone:
[operations](../how-to/operations.md#metrics-and-alerts).
"""
SEE_ALSO = """
The stages in [the latency budget](../explanation/latency-budget.md), work amplification in
[retries](../explanation/retries.md), SLOs and borders in [lanes](../explanation/lanes.md), the shed fraction in
[shedding](../explanation/shedding.md), ejected replicas in [ejection](../explanation/ejection.md), hedges and
cancelled attempts in [hedging](../explanation/hedging.md), cheaper answers in
[degradation](../explanation/degradation.md).
"""
VALUES = (
    ("class", Priority),
    ("outcome", OutcomeKind),
    ("reason", Reason),
    ("reason of `spillway_ejections_total`", EjectionReason),
    ("stage", LatencyStage),
)
"""Labels whose values are a closed list."""
OF_A_HISTOGRAM = "le"


def metrics_page() -> str:
    """The page."""
    closed = ((label, ", ".join(code(each.value) for each in values)) for label, values in VALUES)
    return page(
        "Metrics",
        INTRODUCTION,
        table(("Name", "Type; labels", ""), _rows()),
        "## Labels with closed lists of values",
        table(("Label", "Values"), ((label if "`" in label else code(label), values) for label, values in closed)),
        "## More about them",
        SEE_ALSO,
    )


def _rows() -> Iterator[tuple[str, ...]]:
    old = {each.name for each in OLD_NAMES.values()}
    for family in families():
        if family.name in old:
            continue
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels)
        shown = ", ".join(code(each) for each in labels if each not in (GATEWAY_LABEL, OF_A_HISTOGRAM))
        kind = f"{family.type}; {shown}" if shown else family.type
        yield code(name_of(family)), kind, from_docstring(family.documentation)
