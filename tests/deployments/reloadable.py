"""One emulated replica behind a gateway whose policies tests change while it runs, instead of deploying their own."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from deployments.reload import check_rest, in_place
from deployments.tenants.keys import new_key
from deployments.wire.serve_internals import deploy_document
from tests.deployments.live_cluster import START_PATIENCE_S, Live, RayNodes, emulated_args, replicas_of
from tests.engines.emulated_engines import ensure_tokenizer
from tests.waiting import wait_until

NAME = "reloadable"
NUM_SEQS = 2
"""So few run at a time, and with one more the engine is full: others wait at the gateway."""
CONTEXT_TOKENS = 8192
"""As much KV as those that run can fill: what is cached of others is soon pushed out."""
CEILINGS = {"shop": "critical", "reports": "sheddable"}
KEYS = {name: new_key() for name in CEILINGS}
"""Each tenant's key and what the gateway knows of it."""


@dataclass(frozen=True, slots=True)
class Reloadable:
    """The application, and how its gateway gets another configuration."""

    live: Live
    tenants: Path
    revisions: "count[int]"

    def reload(self, user_config: dict[str, Any] | None, result: str = "applied") -> None:
        """Has Serve hand it to the gateway, and waits until that says so."""
        before = self.live.metric("spillway_reloads_total", result=result)
        self._deploy(None if user_config is None else {**user_config, "revision": next(self.revisions)})
        wait_until(lambda: self.live.metric("spillway_reloads_total", result=result) > before, f"it is {result}")

    def use(self, **policies: Any) -> Live:
        """The same by policies alone."""
        self.reload({"policies": policies})
        return self.live

    def resize(self, replicas: int) -> None:
        """The same file with so many replicas of its pool, as ``deployments.reload`` hands it to Serve."""
        wanted = self._document({"revision": next(self.revisions)})
        running = copy.deepcopy(wanted)
        wanted["applications"][0]["args"]["pools"][0]["replicas"] = replicas
        check_rest(wanted, running)
        deploy_document(in_place(wanted, running))

    def _deploy(self, user_config: dict[str, Any] | None) -> None:
        deploy_document(self._document(user_config))

    def _document(self, user_config: dict[str, Any] | None) -> dict[str, Any]:
        cache = {"max_bytes": 100_000, "ttl_s": 600}
        logs = self.live.nodes.logs.folder(NAME)
        args = emulated_args(tenants=str(self.tenants), response_cache=cache, event_log=logs)
        args["pools"][0]["max_num_seqs"] = NUM_SEQS
        args["engine"] |= {"kv_events": True, "args": {"max_model_len": CONTEXT_TOKENS}}
        args["engine"]["emulation"]["kv_capacity_tokens"] = NUM_SEQS * CONTEXT_TOKENS
        found: dict[str, Any] = {"name": NAME, "route_prefix": f"/{NAME}", "import_path": "deployments.app:build"}
        if user_config is not None:
            found["deployments"] = [{"name": "gateway", "user_config": user_config}]
        return {"applications": [{**found, "args": args}]}


def headers_of(tenant: str) -> dict[str, str]:
    """What a request of a tenant's carries."""
    return {"authorization": f"Bearer {KEYS[tenant][0]}"}


def write_tenants(path: Path, **more: dict[str, Any]) -> Path:
    """The file of tenants, each with its key and ceiling, and what ``more`` says of it."""
    entries = [
        {"name": name, "keys": [KEYS[name][1]], "max_priority": ceiling, **more.get(name, {})}
        for name, ceiling in CEILINGS.items()
    ]
    path.write_text(yaml.safe_dump({"tenants": entries}))
    return path


@contextmanager
def running(nodes: RayNodes, folder: Path) -> Iterator[Reloadable]:
    """The application, warm."""
    from ray import serve

    ensure_tokenizer()
    live = Live(url=f"{nodes.url}/{NAME}", nodes=nodes)
    made = Reloadable(live, write_tenants(folder / "tenants.yaml"), count(1))
    made._deploy(None)
    try:
        wait_until(lambda: replicas_of(live.url) == {"unified": 1}, "its replica is warm", START_PATIENCE_S)
        yield made
    finally:
        serve.delete(NAME, _blocking=False)
    nodes.logs.check(NAME)
