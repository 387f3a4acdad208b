"""The page of metrics as Prometheus's own linter wants it (the rules of ``promtool check metrics``)."""

import re

from prometheus_client.core import Metric

from deployments.reference.counted import families
from tests.deployments.exported_metrics import exported_page
from tests.tables import for_each

FAMILIES = list(families())
ABBREVIATED_UNITS = ("_ms", "_us", "_s", "_sec", "_kb", "_mb", "_gb", "_pct", "_percent")


def test_the_page_is_text_with_one_help_and_one_type_for_each_name() -> None:
    page = exported_page()
    assert page.endswith("\n")
    for word in ("HELP", "TYPE"):
        names = re.findall(rf"^# {word} (\S+)", page, flags=re.MULTILINE)
        assert len(names) == len(set(names))
        assert {family.name for family in FAMILIES} <= {name.removesuffix("_total") for name in names}


def test_no_series_is_there_twice() -> None:
    series = [line.rpartition(" ")[0] for line in exported_page().splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


@for_each("family", FAMILIES)
def test_names_and_texts_follow_the_conventions(family: Metric) -> None:
    assert re.fullmatch(r"spillway_[a-z0-9_]+", family.name)
    assert family.documentation.endswith("."), "a sentence"
    assert not family.name.endswith(ABBREVIATED_UNITS), "base units, written out"
    names = {sample.name for sample in family.samples}
    if family.type == "counter":
        assert all(name.endswith(("_total", "_created")) for name in names)
    else:
        assert not any(name.endswith("_total") for name in names)


@for_each("family", [family for family in FAMILIES if family.type == "histogram"])
def test_a_histograms_buckets_add_up(family: Metric) -> None:
    groups: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    counts: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
        if sample.name.endswith("_bucket"):
            groups.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_count"):
            counts[labels] = sample.value
    assert groups
    for labels, buckets in groups.items():
        bounds, values = zip(*buckets, strict=True)
        assert list(bounds) == sorted(bounds)
        assert bounds[-1] == float("inf")
        assert list(values) == sorted(values)
        assert values[-1] == counts[labels]
