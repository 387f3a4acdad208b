"""Metrics with another name now are on the page under their old one too."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from deployments.telemetry.renamed_metrics import OLD_NAMES, with_old_names


def test_a_renamed_metric_has_a_copy_under_its_old_name_and_labels() -> None:
    slo = CounterMetricFamily("spillway_lane_slo", "Answers.", labels=["lane", "slo", "met"])
    slo.add_metric(["quick", "ttft", "true"], 3)
    new, old = with_old_names([slo])

    assert new is slo
    assert (old.name, old.type) == ("spillway_lane_promises", "counter")
    assert [(each.name, each.labels, each.value) for each in old.samples] == [
        ("spillway_lane_promises_total", {"lane": "quick", "promise": "ttft", "kept": "true"}, 3)
    ]
    assert "spillway_lane_slo" in old.documentation


def test_other_metrics_have_one_name() -> None:
    other = GaugeMetricFamily("spillway_requests_open", "Open.", value=1)
    assert list(with_old_names([other])) == [other]
    assert "spillway_requests_open" not in OLD_NAMES
