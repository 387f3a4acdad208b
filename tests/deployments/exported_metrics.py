"""Every metric that a gateway exports, when there is something to be said of everything."""

import asyncio

import pytest

from deployments.export import ray_mirror
from deployments.export.exports import MetricsExport, NoAggregator
from deployments.export.ray_mirror import RayMirror
from deployments.reference.counted import MODEL, REPLICA, counts, families
from deployments.telemetry.aggregation import GATEWAY_LABEL, page_of
from deployments.telemetry.collectors import reported
from tests.waiting import until


def exported_page() -> str:
    snapshot = counts().snapshot()
    return page_of({"g": snapshot.own}, snapshot.fleet).decode()


def series_labels() -> dict[str, set[str]]:
    """What a query may name: every series of the page with its labels, a histogram's buckets, sum and count too."""
    found: dict[str, set[str]] = {}
    for family in families():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def mirrored_labels() -> dict[str, set[str]]:
    """The same where Ray's agents are asked: what a gateway and a replica tell Ray, without the labels that it adds."""
    told: dict[str, set[str]] = {}

    class Told:
        def __init__(self, name: str, text: str, tag_keys: tuple[str, ...]) -> None:
            self._name = f"ray_{name}"

        def inc(self, value: float, tags: dict[str, str]) -> None:
            told.setdefault(self._name, set()).update(tags)

        set = inc

    async def copy() -> None:
        mirror = RayMirror(num_parts=1, **{GATEWAY_LABEL: "g"})
        export = MetricsExport(counts(), NoAggregator("g"), mirror, period_s=0.001)
        await until(lambda: bool(told), "a copy")
        export.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray_mirror, "Gauge", Told)
        patch.setattr(ray_mirror, "Counter", Told)
        asyncio.run(copy())
        RayMirror().show({MODEL: reported("decode", REPLICA)})
    return told
