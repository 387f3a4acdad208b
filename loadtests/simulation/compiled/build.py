"""The simulator as machine code: a copy of the packages in which mypyc has compiled the modules that take the time.

Nothing is compiled beside the sources, where an extension module would go on hiding a source that was edited since. A
copy is named after the hash of all that went into it, so an edited source has no copy until one is made of it.
docs/adr/0007-compiled-simulator.md says why, and what may be compiled.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from cluster.sim import event_queue
from loadtests.simulation.compiled.constants import enums_of, with_final_constants
from loadtests.simulation.compiled.native_classes import UnknownRecord, with_native_records
from policies.errors import ServingError

ROOT = Path(__file__).parents[3]
BUILDS = Path(".run/compiled")
PACKAGES = ("policies", "routing", "engines", "cluster", "loadtests")
MODULES = (
    "cluster/bound_seconds.py",
    "cluster/latency_budget.py",
    "cluster/load_coordinator/news.py",
    "cluster/pacing.py",
    "cluster/sim/attempt.py",
    "cluster/sim/event_queue.py",
    "cluster/sim/gateway.py",
    "cluster/sim/gateway_processor.py",
    "cluster/sim/load_coordinator.py",
    "cluster/sim/replica.py",
    "cluster/sim/simulator.py",
    "cluster/sim/tied_attempts.py",
    "engines/model/batching.py",
    "engines/model/decode_clock.py",
    "engines/model/engine_model.py",
    "engines/model/held_kv.py",
    "engines/model/kv_blocks.py",
    "engines/model/messages.py",
    "engines/model/sequences.py",
    "engines/model/step_costs.py",
    "engines/model/step_model.py",
    "policies/decisions.py",
    "policies/signals.py",
    "policies/views.py",
    "routing/attempts/hedging.py",
    "routing/attempts/open_attempts.py",
    "routing/attempts/preemption.py",
    "routing/attempts/recovery.py",
    "routing/dispatcher.py",
    "routing/fleet/ejection.py",
    "routing/fleet/first_token.py",
    "routing/fleet/fleet.py",
    "routing/fleet/pool.py",
    "routing/fleet/ramp.py",
    "routing/fleet/replica.py",
    "routing/fleet/shared_kv.py",
    "routing/intake/intake.py",
    "routing/intake/demand.py",
    "routing/intake/logical_requests.py",
    "routing/intake/planning.py",
    "routing/intake/pool_loads.py",
    "routing/intake/slo_meter.py",
    "routing/intake/slos.py",
    "routing/lanes/access.py",
    "routing/prefixes/engine_blocks.py",
    "routing/prefixes/prefix_index.py",
    "routing/queues/backlog.py",
    "routing/queues/elsewhere.py",
    "routing/queues/homes.py",
    "routing/queues/queues.py",
    "routing/request/effects.py",
    "routing/request/events.py",
    "routing/request/news.py",
    "routing/request/refusal.py",
    "routing/request/request.py",
    "routing/request/stages.py",
    "routing/request/states.py",
    "routing/sizing/geometry.py",
    "routing/sizing/length_counts.py",
    "routing/sizing/length_histogram.py",
)
"""What is compiled. Of policies only what they are told and answer is: a policy of a user's own is plain Python."""
AS_WRITTEN = frozenset({"routing/intake/slos.py"})
"""Modules of them whose records are read from files, by libraries that look at the classes."""
_OPTIONS = (
    "--follow-imports=silent",
    "--ignore-missing-imports",
    "--config-file",
    os.devnull,
    "--cache-dir",
    os.devnull,
)
EXTENSIONS = (".so", ".pyd")
_IGNORED = shutil.ignore_patterns("__pycache__", *(f"*{each}" for each in EXTENSIONS))


class CompilationFailed(ServingError):
    """There is no mypyc or no C compiler, or a module does not compile; the message is the end of their output, or says
    what a record is made with that can't be spelled out.
    """


def sources_hash(root: Path = ROOT) -> str:
    """Of all files of the packages, of the interpreter and of the compiler: the name of the copy made from them."""
    digest = hashlib.sha256(f"{sys.implementation.cache_tag} {version('mypy')} {MODULES}".encode())
    for path in _files(root):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def compiled(root: Path = ROOT) -> Path:
    """The folder to import the packages from; makes it unless there is one for these very sources.

    Raises:
        CompilationFailed: It can't be made.
    """
    folder = root / BUILDS / sources_hash(root)
    if not folder.is_dir():
        _build(root, folder)
    return folder


def rerun(module: str, arguments: Sequence[str]) -> None:
    """Replaces this process by ``python -m module`` on compiled packages.

    Raises:
        CompilationFailed: They can't be made.
    """
    environment = os.environ | {"PYTHONPATH": import_path(compiled())}
    os.execve(sys.executable, [sys.executable, "-P", "-m", module, *arguments], environment)  # noqa: S606 - fixed arguments


def import_path(folder: Path) -> str:
    """``PYTHONPATH`` that finds the compiled packages first; goes with ``-P``, or else the work folder is first."""
    return os.pathsep.join([str(folder), str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])


def is_compiled() -> bool:
    """Whether this very process runs compiled packages."""
    return Path(event_queue.__file__).suffix != ".py"


def _files(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and path.parent.name != "__pycache__" and path.suffix not in EXTENSIONS:
                yield path


def _build(root: Path, folder: Path) -> None:
    """Under another name first: a folder of the final name is always whole, whoever else builds or stops half-way."""
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        for package in PACKAGES:
            shutil.copytree(root / package, unfinished / package, ignore=_IGNORED)
        if sources_hash(unfinished) != folder.name:
            raise CompilationFailed("a source was edited while it was copied")
        _rewrite(unfinished)
        _compile(unfinished)
        shutil.rmtree(unfinished / "build")
        _rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _rewrite(folder: Path) -> None:
    """Makes of the modules' sources what mypyc makes more of."""
    enums = enums_of(folder, PACKAGES)
    compiled_names = frozenset(module.removesuffix(".py").replace("/", ".") for module in MODULES)
    for module in MODULES:
        path = folder / module
        source = with_final_constants(path.read_text("utf-8"), enums)
        if module not in AS_WRITTEN:
            try:
                source = with_native_records(source, compiled_names, can_be_extended=module.startswith("policies/"))
            except UnknownRecord as error:
                raise CompilationFailed(f"{module}: {error}, which native_classes.py does not spell out") from error
        path.write_text(source, "utf-8")


def _rename(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # or else another process was first, with the same
            raise


def _compile(folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(folder), "MYPYC_DEBUG_LEVEL": "0"}
    command = [sys.executable, "-m", "mypyc", *_OPTIONS, *MODULES]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilationFailed("\n".join((done.stdout + done.stderr).splitlines()[-20:]))
