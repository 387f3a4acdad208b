"""The folder that ``--save`` names: made before a run, so that nothing is lost after it, and filled at its end."""

import logging
import tempfile
from itertools import count
from pathlib import Path

from loadtests.results.run_folder import SavedRun, write, write_record
from loadtests.results.run_record import RunRecord
from loadtests.simulation.junit import JUNIT_FILE, write_junit
from policies.errors import ConfigError

logger = logging.getLogger(__name__)


def make_folder(folder: Path) -> None:
    """Makes the folder, and finds out whether it can be written.

    Raises:
        ConfigError: It can't.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigError("--save", str(folder), f"a folder that can be written ({error.strerror})") from error


def fill_folder(folder: Path, saved: SavedRun) -> None:
    """Writes run, requests and JUnit, over a run that the folder may hold already.

    Raises:
        OSError: It can't be written.
    """
    write(folder, saved)
    write_junit(folder / JUNIT_FILE, saved.record)


def fill_record(folder: Path, record: RunRecord) -> None:
    """Writes run and JUnit, beside requests that are there.

    Raises:
        OSError: They can't be written.
    """
    write_record(folder, record)
    write_junit(folder / JUNIT_FILE, record)


class SaveFolder:
    """Where a process that may run several tests saves them: the first in the folder, the others beside it."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._taken: set[Path] = set()

    def begin(self, folder: str) -> None:
        """A run begins that is to be saved; it does not take the folder of an earlier one.

        Args:
            folder: What ``--save`` says; empty: it is not saved.

        Raises:
            ConfigError: The folder can't be written.
        """
        self._folder = self._free(Path(folder)) if folder else None
        if self._folder is not None:
            make_folder(self._folder)

    def finish(self, saved: SavedRun) -> bool:
        """Whether everything is where it was to be."""
        if self._folder is None:
            return True
        try:
            fill_folder(self._folder, saved)
        except OSError as error:
            logger.error("--save: the run could not be written, and only what is printed is left of it: %s", error)
            return False
        self._taken.add(self._folder)
        logger.info("the run is in %s", self._folder)
        return True

    def _free(self, folder: Path) -> Path:
        numbered = (folder.with_name(f"{folder.name}-{number}") for number in count(2))
        return folder if folder not in self._taken else next(each for each in numbered if each not in self._taken)
