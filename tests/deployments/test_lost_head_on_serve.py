"""The head of a cluster is lost and comes back: what clients notice, and what works afterwards. Needs Redis."""

import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from deployments.config import ROOT
from engines.peer_port import free_port
from tests.deployments.live_cluster import START_PATIENCE_S, emulated_args, replicas_of
from tests.deployments.restartable_head import HOST, REDIS, RestartableHead, restartable_head
from tests.deployments.streams import open_streams, steady_streams
from tests.engines.emulated_engines import ensure_tokenizer
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.proof,
    pytest.mark.skipif(shutil.which(REDIS) is None, reason=f"{REDIS} is not on the PATH: apt-get install {REDIS}"),
]

TOKENS, LONG_TOKENS, LONG_STREAMS = 20, 2000, 10
SPEED = 0.1
"""Of an engine's: some 17 tokens a second, so that long streams last for two minutes."""
MORE_STREAMS = 24
"""They begin while there is no head, for twice as long as a replica is in quarantine."""
REPLICAS = {"prefill": 2, "decode": 2}
MORE = {"prefill": 2, "decode": 3}
DECODE = "ServeReplica:spillway:decode"


class Served:
    """Two gateways and two pools on the worker node, without a proxy.

    Args:
        cluster: Where.
        port: Of the API.
    """

    def __init__(self, cluster: RestartableHead, port: int) -> None:
        self.cluster = cluster
        self.url = f"http://{HOST}:{port}"
        self._port = port

    def deploy(self, **deployments: dict[str, object]) -> None:
        """What Serve is told beside ``args``, by deployment."""
        document = yaml.safe_load((ROOT / "deployments" / "configs" / "emulated.yaml").read_text())
        args = emulated_args(pools=tuple(REPLICAS.values()), replicas=2, load_coordinator=True)
        args["engine"]["emulation"]["speed"] = SPEED
        options = [{"name": name, **its} for name, its in deployments.items()]
        document["applications"][0] |= {"args": args, "deployments": options}
        document |= {"proxy_location": "Disabled", "http_options": {"host": HOST, "port": self._port}}
        path = self.cluster.folder / "serve.yaml"
        path.write_text(yaml.safe_dump(document))
        self.cluster.deploy(path)

    def samples(self, name: str, **labels: str) -> list[Sample]:
        """Of a metric, of all gateways."""
        page = HTTP.get(f"{self.url}/metrics").text
        samples = [each for its in text_string_to_metric_families(page) for each in its.samples]
        return [each for each in samples if each.name == name and labels.items() <= each.labels.items()]

    def gateways(self) -> set[str]:
        return {each.labels["gateway"] for each in self.samples("spillway_requests_open")}

    def num_reloads(self) -> float:
        return sum(each.value for each in self.samples("spillway_reloads_total", result="applied"))

    def has_without(self, pid: int) -> bool:
        """As many replicas as there are to be, and none of this process."""
        pids = {each.labels["pid"] for each in self.samples("spillway_replica_info")}
        return str(pid) not in pids and self.has(REPLICAS)

    def has(self, replicas: dict[str, int]) -> bool:
        return self.cluster.is_running() and replicas_of(self.url) == replicas


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    ensure_tokenizer()
    with restartable_head() as cluster:
        found = Served(cluster, free_port(HOST))
        found.deploy()
        wait_until(cluster.is_running, "all is up", START_PATIENCE_S)
        wait_until(lambda: len(found.gateways()) == 2, "both gateways say something")
        yield found


@dataclass(frozen=True)
class Outage:
    """Lengths of the answers that clients got who came while the head was away, and of those that were open all along.

    Args:
        short: One after the other, before, meanwhile and afterwards.
        long: Begun before it was lost, and still open when it was back.
    """

    short: list[int]
    long: list[int]


def until_more_end(answers: "list[Future[int]]") -> None:
    last = len(answers) + MORE_STREAMS
    wait_until(
        lambda: len(answers) > last and all(each.done() for each in answers[:last]),
        "streams begin and end without a head",
    )


@pytest.fixture(scope="module")
def outage(served: Served) -> Outage:
    """The head's node is killed, and started again."""
    with open_streams(served.url) as streams, steady_streams(served.url, TOKENS) as answers:
        long = streams.begin("standard", LONG_STREAMS, LONG_TOKENS)
        wait_until(lambda: streams.num_begun == LONG_STREAMS, "long streams are under way")
        served.cluster.kill("head")
        until_more_end(answers)
        served.cluster.start_head()
        wait_until(served.cluster.is_running, "the controller is back", START_PATIENCE_S)
        assert not any(each.done() for each in long), "they should have lasted until then"
    return Outage([each.result() for each in answers], [each.result() for each in long])


def test_clients_notice_nothing_of_a_head_that_is_lost_and_comes_back(outage: Outage) -> None:
    assert outage.short == [TOKENS] * len(outage.short)
    assert outage.long == [LONG_TOKENS] * LONG_STREAMS


def test_a_replica_that_is_killed_afterwards_is_replaced(served: Served, outage: Outage) -> None:
    with steady_streams(served.url, TOKENS) as answers:
        killed = served.cluster.processes("worker", DECODE)[0]
        killed.kill()
        wait_until(lambda: served.has_without(killed.pid), "there is another one", START_PATIENCE_S)
    assert [each.result() for each in answers] == [TOKENS] * len(answers)


def test_a_gateway_that_is_killed_afterwards_is_replaced(served: Served, outage: Outage) -> None:
    before = served.gateways()
    served.cluster.processes("worker", "ServeReplica:spillway:gateway")[0].kill()
    wait_until(lambda: len(served.gateways() & before) == 1, "it is off the page")
    wait_until(lambda: len(served.gateways()) == 2, "another one says something", START_PATIENCE_S)


def test_a_replica_that_dies_while_the_head_is_away_keeps_nobody_waiting(served: Served, outage: Outage) -> None:
    with steady_streams(served.url, TOKENS) as answers:
        served.cluster.kill("head")
        killed = served.cluster.processes("worker", DECODE)[0]
        killed.kill()
        until_more_end(answers)
        served.cluster.start_head()
        wait_until(lambda: served.has_without(killed.pid), "there is another one", START_PATIENCE_S)
    assert [each.result() for each in answers] == [TOKENS] * len(answers)


def test_policies_and_sizes_can_be_changed_afterwards(served: Served, outage: Outage) -> None:
    before = served.num_reloads()
    served.deploy(gateway={"user_config": {"revision": 1}}, decode={"num_replicas": MORE["decode"]})
    wait_until(lambda: served.num_reloads() >= before + 2, "both gateways were told")
    wait_until(lambda: served.has(MORE), "the pool has grown", START_PATIENCE_S)
