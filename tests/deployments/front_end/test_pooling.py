"""Embeddings, scores and reranking: from a body to vectors and back, past replicas that answer at once."""

import base64
import inspect
import re
import struct
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from langchain_openai import OpenAIEmbeddings
from pydantic import SecretStr

from tests.deployments import gateway_in_process as in_process
from tests.tables import for_each
from tests.waiting import wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore:ORJSONResponse is deprecated")]

MODELS: list[dict[str, Any]] = [
    {"id": "embed", "path": ".models/tiny-llama", "pools": [{"name": "embed", "role": "pooling"}]},
    {"id": "rank", "path": ".models/tiny-reranker", "pools": [{"name": "rank", "role": "pooling"}]},
    {"id": "chat", "path": ".models/tiny-llama", "pools": [{"name": "chat", "role": "unified"}]},
]
TEXTS = ["the queue is long", "the queue is not long", "water"]


@pytest.fixture(scope="module", params=["routes", "hot routes"])
def http(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A gateway with three models, by way of FastAPI and past it."""
    is_hot = request.param == "hot routes"
    with in_process.gateway_in_process(is_hot=is_hot, models=MODELS, vllm_front_end={"max_inputs": 40}) as client:
        yield client


def asked(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refused(http: httpx.Client, path: str, **body: Any) -> tuple[int, str, str | None, str]:
    response = http.post(path, json=body)
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"], error["message"]


def open_requests(http: httpx.Client) -> float:
    return sum(map(float, re.findall(r"spillway_requests_open\{.*\} (.*)", http.get("/metrics").text)))


def test_texts_are_embedded_in_their_order(http: httpx.Client) -> None:
    together = asked(http, "/v1/embeddings", model="embed", input=TEXTS)
    alone = [asked(http, "/v1/embeddings", model="embed", input=text) for text in TEXTS]

    assert [each["index"] for each in together["data"]] == [0, 1, 2]
    assert [each["embedding"] for each in together["data"]] == [each["data"][0]["embedding"] for each in alone]
    assert {len(each["embedding"]) for each in together["data"]} == {in_process.VECTOR_VALUES}
    assert (together["model"], together["object"], together["data"][0]["object"]) == ("embed", "list", "embedding")
    assert together["usage"]["prompt_tokens"] == sum(each["usage"]["prompt_tokens"] for each in alone)


def test_token_ids_conversations_and_base64_are_the_same_vectors(http: httpx.Client) -> None:
    text = "the queue"
    token_ids = asked(http, "/tokenize", model="embed", prompt=text)["tokens"]
    plain = asked(http, "/v1/embeddings", model="embed", input=text)["data"][0]["embedding"]

    of_tokens = asked(http, "/v1/embeddings", model="embed", input=[token_ids, token_ids])["data"]
    encoded = asked(http, "/v1/embeddings", model="embed", input=text, encoding_format="base64")["data"][0]["embedding"]
    talked = asked(http, "/v1/embeddings", model="embed", messages=[{"role": "user", "content": text}])
    assert [each["embedding"] for each in of_tokens] == [plain, plain]
    assert list(struct.unpack(f"<{len(plain)}f", base64.b64decode(encoded))) == pytest.approx(plain)
    assert talked["usage"]["prompt_tokens"] > len(token_ids), "a conversation has its template's tokens, too"


def test_a_model_that_embeds_scores_by_how_near_texts_are(http: httpx.Client) -> None:
    for path in ("/v1/score", "/score"):
        scores = asked(http, path, model="embed", queries=TEXTS[0], documents=TEXTS)["data"]
        assert scores[0]["score"] == pytest.approx(1.0, abs=1e-5)
        assert scores[0]["score"] > scores[1]["score"] > scores[2]["score"]


def test_a_model_that_classifies_scores_pairs_and_ranks(http: httpx.Client) -> None:
    pairs = asked(http, "/v1/score", model="rank", text_1=TEXTS[0], text_2=TEXTS)["data"]
    ranked = [
        asked(http, path, model="rank", query=TEXTS[0], documents=TEXTS, top_n=2)["results"]
        for path in ("/v1/rerank", "/rerank", "/v2/rerank")
    ]

    scores = {each["index"]: each["score"] for each in pairs}
    best = sorted(scores, key=scores.__getitem__, reverse=True)[:2]
    assert all(0 < score < 1 for score in scores.values())
    for results in ranked:
        assert [each["index"] for each in results] == best
        assert [each["document"]["text"] for each in results] == [TEXTS[index] for index in best]
        assert [each["relevance_score"] for each in results] == [scores[index] for index in best]


@for_each(
    ("path", "body", "wrong"),
    [
        ("/v1/embeddings", {"model": "chat", "input": "x"}, ("model", "unsupported_value", "/v1/chat/completions")),
        ("/v1/rerank", {"model": "chat", "query": "x", "documents": []}, ("model", "unsupported_value", "serves")),
        ("/v1/embeddings", {"model": "rank", "input": "x"}, ("model", "unsupported_value", "/v1/score, /v1/rerank")),
        ("/v1/completions", {"model": "embed", "prompt": "x"}, ("model", "unsupported_value", "/v1/embeddings")),
        ("/v1/chat/completions", {"model": "embed", "messages": []}, ("model", "unsupported_value", "/v1/embeddings")),
        ("/v1/responses", {"model": "embed", "input": "x"}, ("model", "unsupported_value", "/v1/embeddings")),
        ("/v1/embeddings", {"model": "embed"}, ("input", "missing_required_parameter", "required")),
        ("/v1/embeddings", {"model": "embed", "input": 5}, ("input", "invalid_value", "list")),
        ("/v1/embeddings", {"model": "embed", "input": []}, (None, "invalid_value", "at least one prompt")),
        ("/v1/embeddings", {"model": "embed", "input": [[]]}, (None, "invalid_value", "")),
        ("/v1/embeddings", {"model": "embed", "input": ""}, (None, "invalid_value", "")),
        ("/v1/embeddings", {"model": "embed", "input": [[99_999]]}, ("input", "invalid_value", "vocabulary")),
        ("/v1/embeddings", {"model": "embed", "input": ["x"] * 41}, ("input", "invalid_value", "41 texts; at most 40")),
        ("/v1/embeddings", {"model": "embed", "input": "x", "dimensions": 8}, (None, "invalid_value", "Matryoshka")),
        (
            "/v1/embeddings",
            {"model": "embed", "input": "x", "encoding_format": "bytes"},
            ("encoding_format", "unsupported_value", "base64"),
        ),
        ("/v1/embeddings", {"model": "embed", "input": "x " * 9_000}, (None, "context_length_exceeded", "8192")),
        ("/v1/score", {"model": "rank", "queries": ["x", "y"], "documents": ["z"] * 3}, (None, "invalid_value", "")),
        ("/v1/rerank", {"model": "rank", "query": "x"}, ("documents", "missing_required_parameter", "required")),
        (
            "/v1/rerank",
            {"model": "rank", "query": "x", "documents": ["y"], "top_n": -1},
            ("top_n", "invalid_value", ""),
        ),
    ],
)
def test_what_a_model_is_not_there_for_is_refused_by_name(
    path: str, body: dict[str, Any], wrong: tuple[str | None, str, str], http: httpx.Client
) -> None:
    param, code, said = wrong
    status, found_code, found_param, message = refused(http, path, **body)

    assert (status, found_code) == (400, code), message
    assert param is None or found_param == param, message
    assert said in message


def test_each_text_is_a_request_of_the_dispatchers_and_metrics_know_the_model(http: httpx.Client) -> None:
    def completed(model: str) -> float:
        pattern = rf'spillway_requests_total\{{[^}}]*model="{model}"[^}}]*outcome="completed"[^}}]*\}} (.*)'
        return sum(float(each) for each in re.findall(pattern, http.get("/metrics").text))

    before = completed("embed"), completed("rank")
    asked(http, "/v1/embeddings", model="embed", input=[f"text {number}" for number in range(30)])
    asked(http, "/v1/rerank", model="rank", query="q", documents=["a", "b"])
    assert (completed("embed"), completed("rank")) == (before[0] + 30, before[1] + 2)


def test_openais_client_and_langchain_embed() -> None:
    with in_process.gateway_in_process(is_hot=True, models=MODELS[:1], vllm_front_end={}) as http:
        url = str(http.base_url.join("/v1"))
        with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
            made = client.embeddings.create(model="embed", input=TEXTS)  # asks for base64 by itself
        chain = OpenAIEmbeddings(
            model="embed", base_url=url, api_key=SecretStr("any"), check_embedding_ctx_length=False, chunk_size=20
        )
        assert chain.embed_query(TEXTS[0]) == pytest.approx(made.data[0].embedding)
        assert len(chain.embed_documents([f"text {number}" for number in range(50)])) == 50


def test_one_that_is_refused_refuses_them_all_with_its_headers() -> None:
    with in_process.gateway_in_process(models=MODELS[:1], num_silent=2, vllm_front_end={}) as http:
        late = http.post("/v1/embeddings", json={"model": "embed", "input": TEXTS, "timeout": 0.2})
        none = http.post("/v1/embeddings", json={"model": "embed", "input": TEXTS}, headers={"x-request-deadline": "1"})
        wait_until(lambda: open_requests(http) == 0, "nothing of them is left open")

    for response in (late, none):
        assert response.status_code == 504, response.text
        assert response.json()["error"]["code"] == "deadline_exceeded"
    assert late.headers["x-spillway-reason"] == "deadline_exceeded"


def test_a_text_whose_replica_is_lost_is_embedded_by_another_one() -> None:
    with in_process.gateway_in_process(models=MODELS[:1], loses_first=True, vllm_front_end={}) as http:
        found = asked(http, "/v1/embeddings", model="embed", input=TEXTS)
    assert len(found["data"]) == 3


def test_a_client_that_goes_leaves_no_request_open() -> None:
    with in_process.gateway_in_process(is_hot=True, num_silent=5, models=MODELS[:1], vllm_front_end={}) as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/embeddings", json={"model": "embed", "input": TEXTS}, timeout=0.5)
        wait_until(lambda: open_requests(http) == 0, "nothing of it is left open")


def test_the_names_that_are_built_on_are_vllms_still() -> None:
    """An upgrade that moves them, or has engines heed more, fails here and not in a request."""
    from vllm.entrypoints.pooling.base.serving import PoolingBaseServing
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest
    from vllm.outputs import PoolingRequestOutput
    from vllm.pooling_params import PoolingParams
    from vllm.tasks import SCORE_TYPE_MAP

    from deployments.front_end.pooling_endpoints import TASKS

    assert set(PoolingParams.__struct_fields__) == {
        *"task dimensions use_activation extra_kwargs".split(),  # an engine gets these
        *"step_tag_id returned_token_ids late_interaction_params".split(),  # these are refused
        *"requires_token_ids skip_reading_prefix_cache output_kind".split(),  # and these are its own
    }
    assert {"outputs", "num_cached_tokens", "finished"} <= inspect.signature(PoolingRequestOutput).parameters.keys()
    assert {"chat_template_config", "request_logger"} <= inspect.signature(PoolingBaseServing).parameters.keys()
    assert {"input", "encoding_format"} <= EmbeddingCompletionRequest.model_fields.keys()
    assert set(SCORE_TYPE_MAP) - {"token_embed"} == set(TASKS.values())


def test_token_ids_by_the_hundred_thousand_are_read_at_once_and_what_is_none_is_refused(http: httpx.Client) -> None:
    many = refused(http, "/v1/embeddings", model="embed", input=[5] * 400_000)
    for given in ([5, True], [[5, "x"]], [5, [6]], [5, None], [[5], "x"], [5.0]):
        assert refused(http, "/v1/embeddings", model="embed", input=given)[:2] == (400, "invalid_value"), given
    texts = refused(http, "/v1/embeddings", model="embed", input=[""] * 100_000)

    assert many[1] in ("context_length_exceeded", "invalid_value")
    assert "100000 texts" in texts[3]


def test_pairs_that_are_too_much_to_read_are_refused(http: httpx.Client) -> None:
    status, _, param, message = refused(http, "/v1/rerank", model="rank", query="a b " * 60_000, documents=["b"] * 40)
    assert (status, param) == (400, "query")
    assert "9600040 characters" in message


def test_a_request_that_is_still_being_read_is_given_up_in_time() -> None:
    with in_process.gateway_in_process(models=MODELS[1:2], vllm_front_end={}) as http:
        body = {"model": "rank", "query": "a b " * 5_000, "documents": ["b"] * 400, "truncate_prompt_tokens": 100}
        late = http.post("/v1/rerank", json={**body, "timeout": 0.1})
    assert late.status_code == 504
    assert late.json()["error"]["code"] == "deadline_exceeded"
