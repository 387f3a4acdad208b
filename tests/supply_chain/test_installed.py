"""What is installed is held against the lock."""

from supply_chain.installed import differences, installed
from supply_chain.lockfile import Locked


def locked(name: str, version: str) -> Locked:
    return Locked(name=name, version=version, hashes=frozenset())


def test_an_environment_that_is_as_the_lock_says_has_no_differences() -> None:
    entries = [locked("idna", "3.3"), locked("torch", "2.13.0")]

    assert differences(entries, {"idna": "3.3", "torch": "2.13.0+cpu", "pip": "26", "spillway": "0.1.0"}) == []


def test_what_is_installed_at_another_version_is_named_with_both() -> None:
    assert differences([locked("idna", "3.3")], {"idna": "3.4"}) == ["idna 3.3: 3.4 is installed"]


def test_what_is_missing_is_named() -> None:
    assert differences([locked("idna", "3.3")], {}) == ["idna 3.3: not installed"]


def test_what_the_lock_does_not_know_is_named() -> None:
    assert differences([], {"zipp": "1", "idna": "3.3"}) == [
        "idna 3.3: installed, and not in the lock",
        "zipp 1: installed, and not in the lock",
    ]


def test_distributions_are_found_by_the_names_that_the_lock_has() -> None:
    assert {"pytest", "prometheus-client", "typing-extensions"} <= installed().keys()
