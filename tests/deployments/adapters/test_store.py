"""Adapters of a folder and of a bucket: found when somebody asks for them, and copied where engines read them."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.adapters.local_copies import LocalCopies
from deployments.adapters.registry import AdapterRegistry
from deployments.adapters.store import AdapterStore, check_place, copy
from deployments.adapters.stored import StoredAdapters
from engines import Adapter
from policies.errors import ConfigError, EngineError, RequestInvalid
from tests.deployments.adapters.stores import bucket_of, write_adapters
from tests.tables import for_each

NAMES = ("math", "sql")
COPY = "deployments.adapters.local_copies.copy"


@pytest.fixture(autouse=True)
def _no_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials are not asked for from a machine in a cloud, which takes seconds where there is none."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("loras")
    write_adapters(made, *NAMES)
    (made / "no-adapter").mkdir()
    (made / "no-adapter" / "README.md").write_text("nothing")
    (made / "README.md").write_text("nothing")
    return made


@pytest.fixture(scope="module")
def bucket(folder: Path) -> Iterator[str]:
    with bucket_of(folder) as uri:
        yield uri


@pytest.fixture(scope="module", params=["folder", "file", "s3"])
def place(request: pytest.FixtureRequest, folder: Path, bucket: str) -> str:
    return {"folder": str(folder), "file": f"file://{folder}", "s3": bucket}[request.param]


# -- the store --------------------------------------------------------------------------------------------------------


def test_folders_are_listed_and_those_with_an_adapter_are_told(place: str) -> None:
    store = AdapterStore(place)

    assert store.folders() == NAMES
    found = [each for each in (*NAMES, "no-adapter", "none", "../loras", "", ".", "sql/..", "sql/") if store.has(each)]
    assert found == list(NAMES)


def test_an_adapter_is_where_its_folder_is(folder: Path, bucket: str) -> None:
    assert AdapterStore(f"{folder}/").adapter("m:sql", "sql") == Adapter("m:sql", f"{folder}/sql")
    path = AdapterStore(bucket).adapter("m:sql", "sql").path
    assert path == bucket.replace("/loras?", "/loras/sql?")


@for_each("place", ["nowhere://x", "s3://bucket?scheme=carrier-pigeon&region=us-east-1"])
def test_a_place_that_can_not_be_is_an_error(place: str) -> None:
    with pytest.raises(ConfigError, match="adapter_store"):
        check_place(place)
    with pytest.raises(OSError, match="adapter_store"):
        AdapterStore(place).has("sql")


def test_a_folder_that_is_gone_can_not_be_read_and_is_not_empty(tmp_path: Path) -> None:
    write_adapters(tmp_path / "loras", "sql")
    store = AdapterStore(str(tmp_path / "loras"))
    assert (store.has("sql"), store.has("none")) == (True, False)
    (tmp_path / "loras").rename(tmp_path / "elsewhere")
    for ask in (store.folders, lambda: store.has("sql")):
        with pytest.raises(OSError, match="loras"):
            ask()


def test_an_error_says_nothing_of_credentials() -> None:
    with pytest.raises(ConfigError) as caught:
        check_place("s3://me:sec/ret-secret@bucket?scheme=carrier-pigeon&region=us-east-1")
    assert "secret" not in str(caught.value)


# -- copies -----------------------------------------------------------------------------------------------------------


async def test_an_adapter_of_a_bucket_is_copied_once_and_a_folder_is_left_where_it_is(
    bucket: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = []

    def counted(uri: str, into: Path) -> None:
        copied.append(uri)
        copy(uri, into)

    monkeypatch.setattr(COPY, counted)
    asked = AdapterStore(bucket).adapter("m:sql", "sql")
    first, second = LocalCopies(tmp_path / "own"), LocalCopies(tmp_path / "own")  # two replicas on a machine

    found = await asyncio.gather(*(each.local(asked) for each in (first, second, first)))
    again = await second.local(asked)
    assert {each.name for each in found} == {"m:sql"}
    assert {each.path for each in (*found, again)} == {found[0].path}
    assert (Path(found[0].path) / "adapter_model.safetensors").read_bytes() == b"weights of sql"
    assert copied == [asked.path]
    own = Adapter("m:sql", str(folder / "sql"))
    assert await first.local(own) == own


async def test_what_is_not_there_is_the_requests_fault_and_what_can_not_be_read_is_not(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, store = LocalCopies(tmp_path / "own"), AdapterStore(bucket)
    for name in ("none", "no-adapter"):
        with pytest.raises(RequestInvalid, match="not there") as refused:
            await copies.local(store.adapter(f"m:{name}", name))
        assert "test:test" not in str(refused.value)

    def breaks_off(uri: str, into: Path) -> None:
        (into / "adapter_config.json").write_text("half of it")
        raise OSError("the network is gone")

    with monkeypatch.context() as patch:
        patch.setattr(COPY, breaks_off)
        with pytest.raises(EngineError, match="network is gone"):
            await copies.local(store.adapter("m:math", "math"))
    whole = await copies.local(store.adapter("m:math", "math"))
    assert (Path(whole.path) / "adapter_config.json").read_text() == '{"r": 8}'


async def test_copies_are_kept_where_no_other_user_can_put_any(bucket: str, tmp_path: Path) -> None:
    asked = AdapterStore(bucket).adapter("m:sql", "sql")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("open", "link"):
        with pytest.raises(EngineError, match="fetched"):
            await LocalCopies(tmp_path / name).local(asked)
    await LocalCopies(tmp_path / "own").local(asked)
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


# -- a gateway --------------------------------------------------------------------------------------------------------


class CountingStore(AdapterStore):
    """Counts what it is asked; ``is_gone``: it can't be read."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.num_asked = 0
        self.is_gone = False

    def _asked(self) -> None:
        self.num_asked += 1
        if self.is_gone:
            raise OSError("the bucket is gone")

    def has(self, folder: str) -> bool:
        self._asked()
        return super().has(folder)

    def folders(self) -> tuple[str, ...]:
        self._asked()
        return super().folders()


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def now_s(self) -> float:
        return self.now


async def test_a_name_is_looked_for_once_and_one_that_is_none_again_after_a_while(folder: Path) -> None:
    store, registry, clock = CountingStore(str(folder)), AdapterRegistry(), Clock()
    stored = StoredAdapters("m", store, registry, clock.now_s)

    await asyncio.gather(*(stored.look_for("m:sql") for _ in range(20)))
    assert (store.num_asked, registry.get("m:sql").path) == (1, f"{folder}/sql")
    for name in ("m:sql", "m:late", "m:late", "other:sql", "sql"):
        await stored.look_for(name)
    assert (store.num_asked, registry.names) == (2, ("m:sql",))
    write_adapters(folder, "late")
    clock.now = 11.0
    await stored.look_for("m:late")
    assert registry.names == ("m:late", "m:sql")


async def test_a_store_that_hangs_is_no_answer_for_those_who_ask_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.adapters.stored.PATIENCE_S", 0.05)
    released = threading.Event()

    class Hanging(AdapterStore):
        def has(self, folder: str) -> bool:
            released.wait()
            return False

    stored = StoredAdapters("m", Hanging(str(folder)), AdapterRegistry(), Clock().now_s)
    asked = await asyncio.gather(*(stored.look_for(f"m:a{n}") for n in range(20)), return_exceptions=True)
    released.set()
    stored.close()
    assert {type(each) for each in asked} == {TimeoutError}
    assert await asyncio.to_thread(lambda: 7) == 7, "threads of others are free"


async def test_one_that_was_unloaded_stays_so(folder: Path) -> None:
    registry = AdapterRegistry()
    registry.say("m:sql", "", 5.0)
    stored = StoredAdapters("m", AdapterStore(str(folder)), registry, Clock().now_s)

    await stored.look_for("m:sql")
    await stored.look_for_all()
    assert "m:sql" not in registry.names
    assert "m:math" in registry.names


async def test_a_store_that_can_not_be_read_takes_nothing_away(folder: Path) -> None:
    store, registry, clock = CountingStore(str(folder)), AdapterRegistry(), Clock()
    stored = StoredAdapters("m", store, registry, clock.now_s)
    await stored.look_for_all()
    known = registry.names
    store.is_gone, clock.now = True, 31.0

    await stored.look_for_all()
    assert registry.names == known
    await stored.look_for("m:sql")
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            await stored.look_for("m:other")
    store.is_gone = False
    await stored.look_for("m:other")
    assert "m:other" not in registry.names
