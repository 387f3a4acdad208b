"""What a profile was made from, kept and fitted again."""

from pathlib import Path

import pytest

from engines.calibration.__main__ import main
from engines.calibration.record import load_record, save_record
from engines.model.profile import PROFILES, load_profile
from policies.errors import ConfigError

NAME = "h200-llama3-8b"
RECORD = PROFILES / f"{NAME}.measurements.gz"


def test_the_profile_of_the_gpu_is_what_its_measurements_give(tmp_path: Path) -> None:
    output = tmp_path / "again.yaml"

    assert main(["--refit", str(RECORD), "--name", NAME, "--output", str(output)]) == 0

    again, known = load_profile(str(output)), load_profile(NAME)
    assert again.provenance.residuals == pytest.approx(known.provenance.residuals, abs=1e-3)
    for field in known.step.__struct_fields__:
        assert getattr(again.step, field) == pytest.approx(getattr(known.step, field), rel=1e-3), field
    assert (again.kv, again.start_s) == (known.kv, known.start_s)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = load_record(RECORD)
    save_record(record, tmp_path / "kept" / "copy.gz")

    assert load_record(tmp_path / "kept" / "copy.gz") == record


def test_what_is_no_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "wrong.gz").write_bytes(b"no gzip")

    with pytest.raises(ConfigError, match="a file that --measurements has written"):
        load_record(tmp_path / "wrong.gz")
    damaged = bytearray(RECORD.read_bytes())
    damaged[1000] ^= 255
    (tmp_path / "damaged.gz").write_bytes(damaged)
    with pytest.raises(ConfigError, match="a file that --measurements has written"):
        load_record(tmp_path / "damaged.gz")
    assert main(["--refit", str(tmp_path / "none.gz"), "--output", str(tmp_path / "out.yaml")]) == 2
    assert "refit" in capsys.readouterr().out
