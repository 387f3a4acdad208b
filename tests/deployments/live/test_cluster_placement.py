import openai
import pytest

from tests.deployments.live_cluster import MODEL, Live
from tests.plain_http import HTTP
from tests.waiting import wait_until

pytestmark = [pytest.mark.ray, pytest.mark.vllm]


def test_each_pool_runs_on_its_own_node(live: Live) -> None:
    node_of = {labels["pool"]: labels["node"] for labels, _ in live.samples("spillway_replica_info")}

    assert node_of == {"prefill": live.nodes.prefill, "decode": live.nodes.decode}
    assert len({live.nodes.head, live.nodes.prefill, live.nodes.decode}) == 3


def test_a_replica_says_its_role_process_and_kv_capacity(live: Live) -> None:
    for labels, value in live.samples("spillway_replica_info"):
        assert value == 1
        assert labels["role"] == labels["pool"]
        assert int(labels["pid"]) > 0
        assert int(labels["kv_capacity_tokens"]) >= 8192


def test_ready_counts_a_warm_replica_in_each_pool(live: Live) -> None:
    answer = HTTP.get(f"{live.url}/ready")

    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "replicas": {"prefill": 1, "decode": 1}}


@pytest.mark.parametrize("prompt_tokens", [5, 700])
def test_a_request_crosses_from_the_prefill_node_to_the_decode_node(
    live: Live, client: openai.OpenAI, prompt_tokens: int
) -> None:
    live.wait_until_idle()
    attempts, received = attempts_by_pool(live), received_tokens(live)

    answer = client.completions.create(
        model=MODEL, prompt=a_prompt(prompt_tokens), max_tokens=4, extra_body={"ignore_eos": True}
    )

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    expected = {pool: count + 1 for pool, count in attempts.items()}
    wait_until(lambda: attempts_by_pool(live) == expected, "each replica reports one attempt more")
    with_first_token = prompt_tokens + 1
    wait_until(lambda: received_tokens(live) == received + with_first_token, f"{prompt_tokens} tokens of KV came over")


def test_what_the_decode_node_has_received_once_is_not_sent_again(live: Live, client: openai.OpenAI) -> None:
    prompt = a_prompt(1001)
    first = client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)
    live.wait_until_idle()
    attempts, received = attempts_by_pool(live), received_tokens(live)

    second = client.completions.create(model=MODEL, prompt=prompt, max_tokens=8, temperature=0)

    assert second.choices[0].text == first.choices[0].text
    expected = {pool: count + 1 for pool, count in attempts.items()}
    wait_until(lambda: attempts_by_pool(live) == expected, "each replica reports one attempt more")
    live.wait_until_idle()
    assert received_tokens(live) - received < 500


def attempts_by_pool(live: Live) -> dict[str, float]:
    return {labels["pool"]: value for labels, value in live.samples("spillway_replica_attempts_total")}


def received_tokens(live: Live) -> float:
    return live.metric("spillway_replica_kv_tokens_received_total", pool="decode")


def a_prompt(tokens: int) -> list[int]:
    """Shares no prefix with a prompt of another length."""
    return [20 + tokens % 97, *(7 + (position * position + tokens) % 900 for position in range(tokens - 1))]
