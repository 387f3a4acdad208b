"""How routers are started and judged; the study itself takes minutes."""

from pathlib import Path

import pytest
import yaml

from loadtests.studies.bench_router.__main__ import LADDER, main
from loadtests.studies.bench_router.costs import RouterCosts, highest_rate, table
from loadtests.studies.bench_router.peers import DIRECT, PEERS, peers, routers, write_litellm


def costs(system: str = "a router", **p99_ms: float) -> RouterCosts:
    by_rate = {int(rate[1:]): ms for rate, ms in p99_ms.items()}
    at_rate_us = dict.fromkeys(by_rate, 90.0)
    return RouterCosts(system=system, unary_us=100.0, stream_us=200.0, at_rate_us=at_rate_us, p99_ms=by_rate)


def test_the_highest_rate_is_the_last_one_before_fifty_milliseconds_are_added() -> None:
    direct = costs(DIRECT, _250=5.0, _500=6.0, _1000=7.0)
    assert highest_rate(costs(_250=20.0, _500=56.0, _1000=58.0), direct) == 500
    assert highest_rate(costs(_250=56.0, _500=20.0), direct) == 0, "what comes later does not make up for it"
    assert highest_rate(costs(_250=20.0, _500=20.0, _2000=54.0), direct) == 2000, "beside the best that was measured"


def test_every_router_has_a_row_and_what_was_not_measured_a_dash() -> None:
    drawn = table([costs(DIRECT, _500=5.0), costs(_500=9.0), costs("spillway", _500=8.0, _1000=9.0)], [500, 1000])
    cells = {column.header: list(column.cells) for column in drawn.columns}
    assert cells["router"] == [DIRECT, "a router", "spillway"]
    assert cells["at 1000/s"] == ["-", "-", "90"]
    assert cells["p99 at 500/s"] == ["5.0 ms", "9.0 ms", "8.0 ms"]


def test_each_router_has_ports_and_an_environment_of_its_own_and_is_pinned(tmp_path: Path) -> None:
    found = routers(tmp_path)
    assert len({each.system.port for each in found}) == len(found)
    assert all("==" in peer["requirement"] for peer in peers())
    assert not [each for each in found if "{" in " ".join(each.system.command)], "nothing is left to be filled in"


def test_two_gateways_are_the_same_deployment_but_for_that(tmp_path: Path) -> None:
    routers(tmp_path)
    one, two = (yaml.safe_load((tmp_path / f"spillway-{number}.yaml").read_text()) for number in (1, 2))
    assert two["applications"][0]["args"]["gateway"].pop("replicas") == 2
    assert one["applications"][0]["args"]["gateway"].pop("replicas") == 1
    assert one == two == yaml.safe_load((PEERS / "spillway-router.yaml").read_text())


def test_litellm_has_every_worker(tmp_path: Path) -> None:
    write_litellm(tmp_path)
    assert len(yaml.safe_load((tmp_path / "litellm.yaml").read_text())["model_list"]) == 4


def test_help_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "spillway's gateway and other routers" in " ".join(capsys.readouterr().out.split())
    assert sorted(LADDER) == list(LADDER)
