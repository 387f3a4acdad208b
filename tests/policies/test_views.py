from dataclasses import fields

import pytest

from policies.views import CandidateList, Geometry, RequestView
from tests.policy_doubles import FakeReplica, a_request


def test_a_request_holds_its_prompt_and_its_whole_allowed_output() -> None:
    assert a_request(prompt_tokens=100, max_output_tokens=50).kv_tokens == 150


def test_a_view_cannot_be_written_to() -> None:
    with pytest.raises(AttributeError):
        a_request().prompt_tokens = 1  # type: ignore[misc]


def test_the_least_work_left_is_decided_by_tokens_then_requests_then_id() -> None:
    def least(*loads: tuple[str, int, int]) -> str:
        return (
            CandidateList(FakeReplica(replica_id=a, kv_tokens=b, num_ongoing_requests=c) for a, b, c in loads)
            .least_work_left()
            .replica_id
        )

    assert least(("a", 9, 0), ("b", 8, 5), ("c", 8, 6)) == "b"
    assert least(("a", 9, 0), ("b", 8, 6), ("c", 8, 5)) == "c"
    assert least(("a", 8, 5), ("b", 8, 5)) == "a"


def test_of_no_candidates_none_has_the_least_work_left() -> None:
    with pytest.raises(ValueError, match="empty"):
        CandidateList().least_work_left()


def test_candidates_are_found_by_id_and_add_up() -> None:
    replicas = [FakeReplica(replica_id=name, kv_tokens=10) for name in "abdf"]
    candidates = CandidateList(replicas)

    assert [candidates.find(name) for name in "abcdefg"] == [
        replicas[0],
        replicas[1],
        None,
        replicas[2],
        None,
        replicas[3],
        None,
    ]
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

    assert {each.name: getattr(found, each.name) for each in fields(found)} == {
        **sent,
        "geometry": geometry,
        "lane": "quick",
        "first_token_by_s": 7.5,
    }
