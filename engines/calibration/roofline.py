"""Makes an engine profile from a model's shape and a GPU's data sheet, for machines that nobody here has.

  python -m engines.calibration.roofline --model llama3-8b --device h100-sxm \\
      --output engines/profiles/h100-llama3-8b.yaml

A step reads all weights and the KV that its decoding sequences attend to, and computes; whichever takes longer decides:

  memory  = (weight bytes + context tokens * KV bytes per token) / (bandwidth * memory efficiency)
  compute = (2 * parameters * new tokens + 4 * layers * heads * head size * attention pairs) / (peak FLOP/s * MFU)
  step    = max(memory, compute) + step overhead + sequences * sequence overhead

The step model knows no maximum. Its five terms are fitted to prompts of 128 to 32k tokens in chunks and to batches of
1 to 256 that decode with contexts up to 8k, by non-negative least squares on relative errors. Prefill and decode count
alike, and within each a step counts by the time that it takes, so that the work in a long prompt is right at the cost
of short ones. How far the sum is off the maximum is in the profile's residuals: most where a little of one resource
is used beside all of the other, as by a short prompt, or by one that joins a batch.
"""

import argparse
import datetime
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from engines.calibration.fit import fit_relative, relative_error, residuals
from engines.calibration.roofline_tables import BYTES_PER_VALUE, DEVICES, MODELS, Device, ModelShape
from engines.calibration.samples import Region
from engines.calibration.step_groups import StepGroup
from engines.model.cost_model import StepCoefficients, StepWork, attention_pairs
from engines.model.profile import EngineProfile, KvCache, Overheads, Provenance, save_profile
from engines.model.speculation import Drafts
from policies.errors import ConfigError

BLOCK_TOKENS = 16
MAX_NUM_SEQS = 256
MAX_NUM_BATCHED_TOKENS = 8192
PROMPTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
MIXED_CHUNKS = (128, 512, 2048)


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """How much of a data sheet's figures an engine gets, and what it adds: assumptions, all of them.

    Args:
        mfu: Part of the peak FLOP/s that a large prefill reaches.
        memory: Part of the peak bandwidth that decoding reaches.
        tensor_parallel: Part that is left of both when several devices share a model and exchange activations.
        step_s: Launch, sampling and scheduling of a step that the GPU does not hide.
        sequence_s: The same for each sequence.
        request_s: Front end: from a request's arrival to the scheduler's seeing it.
        token_s: Front end: delivery, for each sequence in a step.
        memory_usage: Part of the memory that the engine may fill.
        activation_bytes: Activations, CUDA graphs and the CUDA context, on each device.
        network_bytes_per_s: A 400 Gbit/s network card between two engines.
        network: Part of it that a KV transfer gets.
        transfer_s: What a transfer costs beside its bytes.
        accepted_fraction: Of draft tokens, with speculative decoding.
        disk_bytes_per_s: A local disk that weights are read from at start.
        start_s: What else a start takes: processes, compilation from a cache, CUDA graphs, warm-up.
        host_bytes_per_s: Between each device and its host's memory, where weights lie while an engine sleeps.
        adapter_fraction: Bytes of a LoRA adapter, of the weights': rank 16 on all linear layers.
        adapter_s: What loading one takes beside reading its bytes.
    """

    mfu: float = 0.5
    memory: float = 0.8
    tensor_parallel: float = 0.85
    step_s: float = 0.0002
    sequence_s: float = 0.000002
    request_s: float = 0.002
    token_s: float = 0.00001
    memory_usage: float = 0.9
    activation_bytes: float = 4e9
    network_bytes_per_s: float = 50e9
    network: float = 0.8
    transfer_s: float = 0.002
    accepted_fraction: float = 0.7
    disk_bytes_per_s: float = 3e9
    start_s: float = 55.0
    host_bytes_per_s: float = 25e9
    adapter_fraction: float = 0.005
    adapter_s: float = 0.02


@dataclass(frozen=True, slots=True)
class Roofline:
    """A model on a number of devices.

    Args:
        model: Its shape.
        device: One of the devices.
        num_devices: Devices that share the model (tensor parallelism).
        efficiency: What they reach.
    """

    model: ModelShape
    device: Device
    num_devices: int = 1
    efficiency: Efficiency = Efficiency()

    @property
    def memory_bytes_per_s(self) -> float:
        """Bandwidth of all devices together, as reached."""
        return self.device.memory_bytes_per_s * self.efficiency.memory * self._speedup

    @property
    def flops_per_s(self) -> float:
        """FLOP/s of all devices together, as reached."""
        return self.device.flops_per_s * self.efficiency.mfu * self._speedup

    def adapter_load_s(self) -> float:
        """Time to read a LoRA adapter from disk."""
        efficiency = self.efficiency
        num_bytes = self.model.weight_bytes * efficiency.adapter_fraction
        return efficiency.adapter_s + num_bytes / efficiency.disk_bytes_per_s

    @property
    def _speedup(self) -> float:
        return self.num_devices * (self.efficiency.tensor_parallel if self.num_devices > 1 else 1.0)

    def memory_s(self, work: StepWork) -> float:
        """Time to read what a step reads."""
        kv_bytes = work.context_tokens * self.model.kv_bytes_per_token
        return (self.model.weight_bytes + kv_bytes) / self.memory_bytes_per_s

    def compute_s(self, work: StepWork) -> float:
        """Time to compute what a step computes."""
        attention = self.model.flops_per_attention_pair * work.attention_pairs
        return (self.model.flops_per_token * work.new_tokens + attention) / self.flops_per_s

    def step_s(self, work: StepWork) -> float:
        """Duration of a step."""
        overhead_s = self.efficiency.step_s + self.efficiency.sequence_s * work.sequences
        return max(self.memory_s(work), self.compute_s(work)) + overhead_s

    def prefill_s(self, prompt_tokens: int) -> float:
        """Duration of a lone prompt's steps."""
        return sum(map(self.step_s, prompt_chunks(prompt_tokens)))

    def drafts(self) -> Drafts:
        """A draft that is read once for each of its tokens, whatever the batch, and computes for each sequence."""
        parameters, efficiency = self.model.num_draft_parameters, self.efficiency
        return Drafts(
            accepted_fraction=efficiency.accepted_fraction,
            step_s=parameters * BYTES_PER_VALUE / self.memory_bytes_per_s + efficiency.step_s,
            token_s=2 * parameters / self.flops_per_s + efficiency.sequence_s,
        )

    def weights_moved_s(self) -> float:
        """Time that weights take to the host's memory, and from there: an engine falls asleep and wakes up."""
        return self.model.weight_bytes / (self.num_devices * self.efficiency.host_bytes_per_s)

    def kv_capacity_tokens(self) -> int:
        """KV tokens for which there is memory beside weights and activations, in whole blocks.

        Raises:
            ConfigError: The weights do not fit.
        """
        usable_bytes = self.device.memory_bytes * self.efficiency.memory_usage - self.efficiency.activation_bytes
        left_bytes = usable_bytes * self.num_devices - self.model.weight_bytes
        num_blocks = int(left_bytes // (self.model.kv_bytes_per_token * BLOCK_TOKENS))
        if num_blocks < 1:
            raise ConfigError("tensor_parallel", self.num_devices, f"enough devices for {self.model.title}")
        return num_blocks * BLOCK_TOKENS


def prompt_chunks(prompt_tokens: int) -> Iterator[StepWork]:
    """The steps of a prompt that is computed alone."""
    for computed in range(0, prompt_tokens, MAX_NUM_BATCHED_TOKENS):
        chunk = min(prompt_tokens - computed, MAX_NUM_BATCHED_TOKENS)
        yield StepWork(chunk, attention_pairs(chunk, computed), 1, 0)


def decode_step(batch: int, context_tokens: int) -> StepWork:
    """A step in which so many sequences decode, with a context of so many tokens each."""
    return StepWork(batch, 0, batch, batch * context_tokens)


def _make_steps(roofline: Roofline) -> list[StepGroup]:
    """Steps of every kind that fit into the KV cache, and what the roofline says of them."""
    capacity_tokens = roofline.kv_capacity_tokens()
    prefill = {chunk for prompt in PROMPTS for chunk in prompt_chunks(prompt)}
    decode = [decode_step(*size) for size in product(BATCHES, CONTEXTS) if size[0] * size[1] <= capacity_tokens]
    chunks = [next(prompt_chunks(tokens)) for tokens in MIXED_CHUNKS]
    mixed = [StepWork(*map(sum, zip(*both, strict=True))) for both in product(chunks, decode)]
    kinds = ((Region.PREFILL, sorted(prefill)), (Region.DECODE, decode), (Region.MIXED, mixed))
    return [
        StepGroup("roofline", region, work, roofline.step_s(work), spread=0.0, number=1)
        for region, works in kinds
        for work in works
    ]


def _fit_sum(groups: Sequence[StepGroup]) -> StepCoefficients:
    """The five terms that come closest to the maximum; see the module."""
    pure = [each for each in groups if each.region is not Region.MIXED]
    totals_s = {region: sum(each.seconds for each in pure if each.region is region) for region in Region}
    weights = [each.seconds / totals_s[each.region] for each in pure]
    return fit_relative([each.work for each in pure], [each.seconds for each in pure], weights)


def make_profile(name: str, roofline: Roofline, date: str) -> EngineProfile:
    """The profile.

    Args:
        name: Its name.
        roofline: What it describes.
        date: ``YYYY-MM-DD``.

    Raises:
        ConfigError: The model does not fit into the devices' memory.
    """
    groups = _make_steps(roofline)
    coefficients, sleep_s = _fit_sum(groups), round(roofline.weights_moved_s(), 2)
    efficiency, model, capacity_tokens = roofline.efficiency, roofline.model, roofline.kv_capacity_tokens()
    return EngineProfile(
        name=name,
        provenance=Provenance(
            kind="analytic",
            model=f"{model.title}, bf16",
            machine=f"{roofline.num_devices} x {roofline.device.title}",
            date=date,
            method=_method(efficiency, roofline.num_devices),
            residuals=_residuals(coefficients, groups),
        ),
        step=coefficients,
        overheads=Overheads(request_s=efficiency.request_s, token_s=efficiency.token_s),
        kv=_kv_cache(roofline, capacity_tokens),
        drafts=roofline.drafts(),
        context_tokens=min(model.context_tokens, capacity_tokens),
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        start_s=round(efficiency.start_s + model.weight_bytes / efficiency.disk_bytes_per_s, 1),
        sleep_s=sleep_s,
        wake_s=sleep_s,
        adapter_load_s=round(roofline.adapter_load_s(), 3),
    )


def _kv_cache(roofline: Roofline, capacity_tokens: int) -> KvCache:
    efficiency = roofline.efficiency
    return KvCache(
        block_tokens=BLOCK_TOKENS,
        capacity_tokens=capacity_tokens,
        bytes_per_token=roofline.model.kv_bytes_per_token,
        bandwidth_bytes_per_s=efficiency.network_bytes_per_s * efficiency.network,
        transfer_overhead_s=efficiency.transfer_s,
    )


def _residuals(coefficients: StepCoefficients, groups: Sequence[StepGroup]) -> dict[str, float]:
    worst = max(abs(relative_error(coefficients, each)) for each in groups)
    return {**residuals(coefficients, groups, "approximation"), "approximation_worst": round(worst, 4)}


def _method(efficiency: Efficiency, num_devices: int) -> str:
    shared = f", tensor parallelism at {efficiency.tensor_parallel:.0%}" if num_devices > 1 else ""
    return (
        "python -m engines.calibration.roofline: max((weight bytes + KV bytes) / bandwidth, (2 * parameters * tokens + "
        f"4 * layers * heads * head size * pairs) / FLOP/s) at {efficiency.mfu:.0%} of peak FLOP/s and "
        f"{efficiency.memory:.0%} of peak bandwidth{shared}, approximated by a sum of five terms; "
        "overheads, network, start, sleep and accepted draft tokens are assumptions, nothing was measured"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m engines.calibration.roofline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", required=True, choices=sorted(MODELS))
    parser.add_argument("--device", required=True, choices=sorted(DEVICES))
    parser.add_argument("--tensor-parallel", type=int, default=1, metavar="N", help="devices that share the model (1)")
    parser.add_argument("--name", help="the profile's name; the output file's without .yaml where not given")
    parser.add_argument("--output", type=Path, required=True, help="the profile to write, a YAML file")
    options = parser.parse_args(arguments)
    if options.tensor_parallel < 1:
        parser.error("--tensor-parallel must be 1 or more")
    roofline = Roofline(MODELS[options.model], DEVICES[options.device], options.tensor_parallel)
    date = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    try:
        profile = make_profile(options.name or options.output.stem, roofline, date)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    save_profile(profile, options.output)
    for measure, value in profile.provenance.residuals.items():
        print(f"{measure:32} {value:+.1%}")
    print(f"written: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
