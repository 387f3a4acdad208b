"""Everything that a profile was made from, in a file.

Measured once, on a machine that costs by the minute; fitted again wherever and whenever the fit changes.
"""

import gzip
import zlib
from pathlib import Path

import msgspec

from engines.calibration.grid import Bounds
from engines.calibration.runner import Measurement
from engines.calibration.study import CalibrationFindings, CalibrationPlan, conclude
from engines.model.profile import EngineProfile
from policies.errors import ConfigError


class CalibrationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One calibration.

    Args:
        profile: As it came out: what the fit does not touch (the machine, versions, sizes, the link) is taken from it.
        bounds: What the grid spanned.
        plan: How it was measured.
        measurements: What was seen at its points, in the order in which they were run.
    """

    profile: EngineProfile
    bounds: Bounds
    plan: CalibrationPlan
    measurements: list[Measurement]

    def refitted(self) -> tuple[EngineProfile, CalibrationFindings]:
        """The profile that today's fit makes of it, and what was found."""
        findings = conclude(self.measurements, self.bounds, self.plan)
        provenance = msgspec.structs.replace(self.profile.provenance, residuals=dict(findings.residuals))
        profile = msgspec.structs.replace(
            self.profile, provenance=provenance, step=findings.coefficients, overheads=findings.overheads
        )
        return profile, findings


def save_record(record: CalibrationRecord, path: Path) -> None:
    """Writes a record, packed; the same record is the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(msgspec.msgpack.encode(record), mtime=0))


def load_record(path: Path) -> CalibrationRecord:
    """Reads what :func:`save_record` has written.

    Raises:
        ConfigError: No such file, or no record.
    """
    try:
        return msgspec.msgpack.decode(gzip.decompress(path.read_bytes()), type=CalibrationRecord)
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError) as error:
        raise ConfigError("refit", str(path), f"a file that --measurements has written ({error})") from error
