"""What is not forgotten: whose calls were refused, who loaded adapters, which configurations came."""

import json
import logging
import stat
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deployments.tenants import audit_log
from deployments.tenants.audit_log import AuditEntry, AuditLog, NoAuditLog, open_audit_log
from tests.deployments.app_args import error_of
from tests.deployments.gateway_in_process import Routes, service_in_process
from tests.waiting import wait_until

MODELS: list[dict[str, Any]] = [
    {"id": "large", "path": ".models/tiny-llama", "pools": [{"name": "large", "role": "unified"}], "adapters": []}
]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.iterdir()) for line in file.read_text().splitlines()]


def test_nothing_is_noted_where_no_folder_is_named() -> None:
    log = open_audit_log(None, "a")
    log.note(AuditEntry(did="/", status=401))
    log.close()
    assert type(log) is NoAuditLog


def test_an_entry_is_a_line_that_says_when_and_where_in_a_file_that_nobody_else_reads(tmp_path: Path) -> None:
    log = open_audit_log(str(tmp_path / "new" / "folder"), "gateway-a")
    entry = AuditEntry(did="/v1/load_lora_adapter", status=200, what="poet\n", tenant="loader", client="10.0.0.7")
    log.note(entry)
    log.close()

    [line] = lines(tmp_path / "new" / "folder")
    assert line.pop("at").endswith("+00:00")
    said = {"did": "/v1/load_lora_adapter", "status": 200, "code": "", "what": "poet\n", "tenant": "loader"}
    assert line == {"gateway": "gateway-a", "entry": {**said, "client": "10.0.0.7"}}
    [file] = (tmp_path / "new" / "folder").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_full_file_is_put_aside_and_the_oldest_one_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "FILE_BYTES", 2_000)
    log = open_audit_log(str(tmp_path), "a")
    for number in range(200):
        log.note(AuditEntry(did=str(number), status=401))
    log.close()

    files = sorted(tmp_path.iterdir())
    assert len(files) == 1 + audit_log.NUM_FORMER_FILES
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
    assert json.loads(files[0].read_text().splitlines()[-1])["entry"]["did"] == "199"


class HangingDisk(logging.Handler):
    """Writes nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.written: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert self.may_go_on.wait(60)
        self.written.append(json.loads(record.getMessage()))


def test_lines_that_found_no_place_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "MOST_WAITING", 2)
    disk = HangingDisk()
    log = AuditLog(disk, "a")
    for _ in range(10):
        log.note(AuditEntry(did="early", status=401))
    disk.may_go_on.set()
    wait_until(lambda: len(disk.written) >= 2, "early lines are written")
    log.note(AuditEntry(did="after", status=401))
    log.note(AuditEntry(did="later", status=401))
    log.close()

    early = [each for each in disk.written if each["entry"]["did"] == "early"]
    assert 2 <= len(early) <= 3, "two wait, and one may be on its way"
    assert [each["lines_lost"] for each in disk.written if "lines_lost" in each] == [10 - len(early)]


def test_a_folder_that_can_not_be_written_to_is_a_wrong_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = error_of(open_audit_log, str(tmp_path / "file" / "audit"), "a")
    assert error.field == "gateway.audit_log"


def test_a_gateway_notes_whom_it_refuses_who_loads_adapters_and_what_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {name: f"sha256:{sha256(name.encode()).hexdigest()}" for name in ("loader", "shop")}
    tenants = [
        {"name": "loader", "keys": [keys["loader"]], "may_load_adapters": True},
        {"name": "shop", "keys": [keys["shop"]]},
    ]
    monkeypatch.setenv("TENANTS_OF_THIS_TEST", yaml.safe_dump({"tenants": tenants}))
    folder, adapter = tmp_path / "audit", {"lora_name": "poet", "lora_path": "/adapters/poet"}
    options: dict[str, Any] = {"tenants": "env:TENANTS_OF_THIS_TEST", "audit_log": str(folder)}
    with (
        service_in_process(models=MODELS, **options) as (portal, service),
        httpx.Client(transport=Routes(portal), base_url="http://gateway") as http,
    ):

        def call(path: str, key: str, body: dict[str, Any]) -> None:
            http.post(path, json=body, headers={"authorization": f"Bearer {key}"})

        call("/v1/completions", "nobody", {"model": "large", "prompt": "a"})
        call("/v1/completions", "shop", {"model": "large", "prompt": "a", "priority": "critical"})
        call("/v1/completions", "shop", {"model": "large", "prompt": "a", "max_tokens": 1})
        call("/v1/load_lora_adapter", "shop", adapter)
        call("/v1/load_lora_adapter", "loader", adapter)
        call("/v1/unload_lora_adapter", "loader", {"lora_name": "poem"})
        portal.call(service.reconfigure, {})
        portal.call(service.reconfigure, {"policies": {"queueing": "edf"}})
        portal.call(service.reconfigure, {"policies": {"queueing": "none"}})

    noted = [(each["entry"]["did"], each["entry"]["status"], each["entry"]["tenant"]) for each in lines(folder)]
    assert noted == [
        ("/v1/completions", 401, ""),
        ("/v1/completions", 403, "shop"),
        ("/v1/load_lora_adapter", 403, "shop"),
        ("/v1/load_lora_adapter", 200, "loader"),
        ("/v1/unload_lora_adapter", 404, "loader"),
        ("user_config", 200, ""),
        ("user_config", 400, ""),
    ]
    assert "nobody" not in json.dumps(lines(folder)), "no key is kept"
