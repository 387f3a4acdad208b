"""Switches faults of a running deployment's emulated engines on and off.

``python -m deployments.faults slow --pool decode --replica 0 --factor 5 --for 30`` makes one replica slow for half a
minute; ``python -m deployments.faults clear --pool decode --replica 0`` ends every fault of it that can be ended. For a
deployment of the local launcher ``--port`` says which; on a cluster ``--address`` is Ray's and ``--url`` spillway's.
"""

import argparse
import sys

import httpx
from prometheus_client.parser import text_string_to_metric_families

from deployments.local.places import join
from engines.faults import FaultKind
from policies.errors import ConfigError, ServingError

CLEAR = "clear"
CALL_PATIENCE_S = 10.0
NAME = "spillway"


def replicas_of(url: str, pool: str) -> list[str]:
    """Ids of a pool's replicas as the gateway lists them, in alphabetical order.

    Raises:
        ConfigError: The deployment does not answer, or the pool has no replica.
    """
    try:
        answer = httpx.get(f"{url}/metrics", timeout=CALL_PATIENCE_S).raise_for_status()
    except httpx.HTTPError as error:
        raise ConfigError("url", url, f"where a deployment answers ({error})") from error
    infos = [
        sample.labels
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.name == "spillway_replica_info"
    ]
    found = sorted(labels["replica"] for labels in infos if labels["pool"] == pool)
    if not found:
        raise ConfigError("pool", pool, f"one of {sorted({labels['pool'] for labels in infos})}")
    return found


def choose(replicas: list[str], wanted: str) -> str:
    """The replica with this number, counted from 0, or with this id.

    Raises:
        ConfigError: There is none.
    """
    if wanted in replicas:
        return wanted
    if wanted.isdecimal() and int(wanted) < len(replicas):
        return replicas[int(wanted)]
    raise ConfigError("replica", wanted, f"0 to {len(replicas) - 1}, or one of {replicas}")


def switch(
    kind: str, pool: str, replica_id: str, *, factor: float = 1.0, for_s: float | None = None, application: str = NAME
) -> None:
    """Switches a fault of one replica on, or all of its faults off. Ray must be connected.

    The call counts as a request: it waits for a replica that has as many as it takes.

    Args:
        kind: A fault, or ``clear``.
        pool: Name of the pool.
        replica_id: The replica's own id.
        factor: For ``slow``: how many times as long a step takes.
        for_s: Seconds until the fault ends; ``None`` leaves it on.
        application: Name of the Serve application.

    Raises:
        ConfigError: The engine is no emulated one, or the replica has gone meanwhile.
    """
    from ray import serve  # noqa: PLC0415 - Ray reads its environment when it is imported
    from ray.exceptions import RayTaskError  # noqa: PLC0415

    handle = serve.get_deployment_handle(pool, application).options(_by_reference=False)
    if kind == CLEAR:
        call = handle.clear_faults.remote(target=replica_id)
    else:
        call = handle.inject_fault.remote(kind, factor=factor, for_s=for_s, target=replica_id)
    try:
        call.result(timeout_s=CALL_PATIENCE_S)
    except RayTaskError as error:
        raise error.cause from error
    except TimeoutError as error:
        raise ConfigError("replica", replica_id, "a replica with a free slot") from error


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deployments.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=[*(kind.value for kind in FaultKind), CLEAR], help="the fault, or clear")
    parser.add_argument("--pool", required=True, help="name of the pool")
    parser.add_argument("--replica", required=True, help="number of the replica in its pool, from 0, or its id")
    parser.add_argument(
        "--factor", type=float, default=1.0, help="for slow, which needs it: how many times as long a step takes"
    )
    parser.add_argument("--for", dest="for_s", type=float, help="seconds until it ends; for good when not given")
    parser.add_argument("--port", type=int, default=8000, help="HTTP port of the launcher's deployment")
    parser.add_argument("--address", help="of the Ray cluster, unless the launcher runs it here")
    parser.add_argument("--url", help="where spillway answers, unless it is at the port")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Command line: 0 when the fault is on, 2 when it could not be switched on."""
    options = _parse(arguments)
    try:
        replica_id = choose(
            replicas_of(options.url or f"http://127.0.0.1:{options.port}", options.pool), options.replica
        )
        join(options.port, options.address)
        switch(options.kind, options.pool, replica_id, factor=options.factor, for_s=options.for_s)
    except ServingError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.kind}: replica {replica_id} of pool {options.pool}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
