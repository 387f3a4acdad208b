"""The examples in the simulator; ``tests/deployments/live/test_examples_on_serve.py`` has them on Serve."""

from pathlib import Path

from cluster.seeds import Seeds
from cluster.sim.simulator import simulate
from loadtests.scenario.scenario import load
from loadtests.workloads.clients import Clients
from policies.candidates import CandidateList
from policies.views import Geometry
from routing.lanes.lanes import Lane, TokenRange
from tests.examples.fewest_kv_tokens import FewestKvTokens
from tests.examples.long_answers_apart import LongAnswersApart
from tests.policy_doubles import FakeFleet, FakeReplica, a_request
from tests.tables import for_each

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LANES = (
    Lane(name="short", prompt_tokens=TokenRange(below=100), pools=("a",)),
    Lane(name="long", prompt_tokens=TokenRange(at_least=100), pools=("a",)),
    Lane(name="slow", pools=("b",)),
)


@for_each(
    ("name", "page"),
    [("fewest_kv_tokens.py", "README.md"), ("long_answers_apart.py", "docs/how-to/write-a-policy.md")],
)
def test_the_documentation_shows_the_very_file(name: str, page: str) -> None:
    shown = (ROOT / page).read_text(encoding="utf-8")
    assert f"```python\n{(HERE / name).read_text(encoding='utf-8')}```" in shown


@for_each("name", ["fewest_kv_tokens.py", "long_answers_apart.py"])
def test_an_example_is_short(name: str) -> None:
    assert len((HERE / name).read_text(encoding="utf-8").splitlines()) <= 35


def test_the_balancer_goes_by_kv_tokens_then_by_prefill() -> None:
    candidates = CandidateList(
        [
            FakeReplica(replica_id="a", kv_tokens=900),
            FakeReplica(replica_id="b", kv_tokens=120, prefill_tokens=80),
            FakeReplica(replica_id="c", kv_tokens=150, prefill_tokens=20),
        ]
    )

    assert FewestKvTokens().pick(a_request(), candidates, 0.0).replica_id == "b"
    assert FewestKvTokens(slack_tokens=99).pick(a_request(), candidates, 0.0).replica_id == "c"


@for_each(
    ("prompt_tokens", "output_tokens", "lane"),
    [(99, 399, "short"), (100, 399, "long"), (99, 400, "slow"), (5000, 4000, "slow")],
)
def test_the_classifier_goes_by_the_expected_answer_then_by_the_prompt(
    prompt_tokens: int, output_tokens: int, lane: str
) -> None:
    request = a_request(prompt_tokens=prompt_tokens, geometry=Geometry(output_tokens=output_tokens))

    assert LongAnswersApart(from_tokens=400).classify(request, LANES, FakeFleet(), 0.0).name == lane


def test_in_the_simulator_long_answers_keep_to_their_pool() -> None:
    """Answers have 40 tokens or 500; only idle replicas of the slow pool see any of the quick ones."""
    scenario = load(str(HERE / "long-answers-apart.yaml"))
    workload = scenario.workload.build(scenario.duration_s)

    table = simulate(
        scenario.fleet_spec(),
        scenario.dispatcher_spec("policy"),
        Clients(workload, Seeds(1)),
        scenario.workload.class_names,
        seed=1,
    )

    quick = [each for each in table.replicas if each.replica_id.startswith("quick")]
    slow = [each for each in table.replicas if each.replica_id.startswith("slow")]
    assert len(quick) == len(slow) == 2
    assert all(each.attempts and each.output_tokens == 40 * each.attempts for each in quick)
    assert all(each.output_tokens > 40 * each.attempts for each in slow)
