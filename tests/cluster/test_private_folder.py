"""A folder with a name that anybody may guess is used only where it is this user's alone."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from cluster.private_folder import check_own, private_folder
from deployments.local.places import place_of
from policies.errors import ConfigError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"spillway-{os.getuid()}"


def test_it_is_made_for_this_user_alone_whatever_the_umask(place: Path) -> None:
    before = os.umask(0)
    try:
        assert private_folder() == place
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert place_of(8000) == place / "8000"


def test_one_that_others_may_read_is_closed_to_them(place: Path) -> None:
    place.mkdir(mode=0o755)
    private_folder()
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_one_that_others_may_write_to_is_refused(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)
    with pytest.raises(ConfigError, match="this user's alone"):
        private_folder()


def test_a_link_that_somebody_has_planted_is_not_followed(place: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=str(place)):
        place_of(8000)


def test_somebody_elses_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(mode=0o700)
    monkeypatch.setattr(os, "getuid", lambda: place.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="TMPDIR"):
        check_own("TMPDIR", place)


def test_a_file_is_no_folder(place: Path) -> None:
    place.write_text("")
    with pytest.raises(ConfigError, match="TMPDIR"):
        private_folder()


def test_a_link_to_nowhere_is_refused_too(place: Path, tmp_path: Path) -> None:
    place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="TMPDIR"):
        private_folder()
