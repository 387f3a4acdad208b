from dataclasses import fields

import pytest

from policies.candidates import CandidateList
from policies.views import Geometry, RequestView
from tests.policy_doubles import FakeReplica, a_request
from tests.tables import for_each


def test_a_request_holds_its_prompt_and_its_whole_allowed_output() -> None:
    assert a_request(prompt_tokens=100, max_output_tokens=50).kv_tokens == 150


def test_a_view_cannot_be_written_to() -> None:
    with pytest.raises(AttributeError):
        a_request().prompt_tokens = 1  # type: ignore[misc]


@for_each(
    ("tokens", "requests", "least"),
    [((9, 8, 8), (0, 5, 6), "b"), ((9, 8, 8), (0, 6, 5), "c"), ((8, 8, 9), (5, 5, 0), "a")],
)
def test_the_least_work_left_is_decided_by_tokens_then_requests_then_id(
    tokens: tuple[int, ...], requests: tuple[int, ...], least: str
) -> None:
    loads = zip("abc", tokens, requests, strict=True)
    candidates = CandidateList(FakeReplica(replica_id=a, kv_tokens=b, num_ongoing_requests=c) for a, b, c in loads)
    assert candidates.least_work_left().replica_id == least


def test_of_no_candidates_none_has_the_least_work_left() -> None:
    with pytest.raises(ValueError, match="empty"):
        CandidateList().least_work_left()


def test_candidates_are_found_by_id_and_add_up() -> None:
    replicas = {name: FakeReplica(replica_id=name, kv_tokens=10) for name in "abdf"}
    candidates = CandidateList(replicas.values())
    assert [candidates.find(name) for name in "abcdefg"] == [replicas.get(name) for name in "abcdefg"]
    assert candidates.total_work_tokens() == 40


def test_a_replica_is_a_candidate_when_it_is_this_very_object() -> None:
    replicas = [FakeReplica(replica_id=name) for name in "abdf"]
    candidates = CandidateList(replicas)

    assert all(candidates.has(each) for each in replicas)
    assert not any(candidates.has(FakeReplica(replica_id=name)) for name in "abcdefg")
    assert not candidates.has(None)
    assert not candidates.has("a")
    assert not CandidateList().has(replicas[0])


ROUTERS_OWN = ("geometry", "lane", "first_token_by_s")


def test_a_classified_request_keeps_everything_that_the_client_sent() -> None:
    sent = {each.name: object() for each in fields(RequestView) if each.name not in ROUTERS_OWN}
    geometry = Geometry(output_tokens=5)
    found = RequestView(**sent).classified(geometry, "quick", 7.5)  # type: ignore[arg-type]
    kept = {each.name: getattr(found, each.name) for each in fields(found)}
    assert kept == {**sent, "geometry": geometry, "lane": "quick", "first_token_by_s": 7.5}
