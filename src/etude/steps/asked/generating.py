"""Jobs that are generated: `generate` of a model and a plan, and `generate micro` of one pattern of messages."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part
from etude.base.outputs import OutputPlace
from etude.base.parameters import is_given, naming, only_one, spelled
from etude.base.talk import say
from etude.base.units import format_bytes, format_count, parse_bytes
from etude.make.generate import Plan
from etude.make.generate.model import UnmappedConfigError
from etude.steps.asked.driving import (
    DrivenInput,
    DrivenInputs,
    DrivenJob,
    config_file,
    driven_figures,
    driven_inputs,
    needs_transformers,
    refuse_driven,
    run_driven,
)
from etude.steps.asked.job_out import (
    JobFiles,
    JobMade,
    JobOut,
    LimitInput,
    MemoryLimit,
    MemoryOut,
    memory_place,
    write_job,
    written,
)
from etude.steps.asked.plans import PANEL, ModelOrConfig, PlanInput, mapped_figures, model_asked, plan_asked

if TYPE_CHECKING:
    from etude.make.generate import Generated, MicroOptions
    from etude.make.generate.model import Model
    from etude.model.job import Job

PATTERN = "Pattern"


@dataclass(frozen=True, kw_only=True)
class Generate(MemoryOut, ModelOrConfig, DrivenInput, PlanInput, JobMade, LimitInput):
    """The job of one training step, or of serving, from a model and a plan

    etude generate llama3-70b --gpus 512 --tp 8 --pp 4 --cp 2 --schedule interleaved:4 \\
        --global-batch 512 --recompute selective --zero 1 -o job/
    etude generate qwen3-30b-a3b --gpus 32 --ep 16 --seq 2048 --global-batch 32 --memory dgx-h100 -o moe/
    etude generate llama3-8b --gpus 8 --zero 3 --lengths 512:0.6,2048:0.4 --no-write
    etude generate llama3-8b --gpus 8 --cp 8 --seq 8192 --global-batch 8 --batching packed \\
        --lengths 512:0.6,2048:0.4 --cp-map lpt --block 512 -o job/
    etude generate --hf config.json --gpus 64 --zero 3 --to et --dialect astra -o job/
    etude generate --program model.py:build --inputs "tokens=int64[4,8192]" --gpus 64 --zero 3 -o job/

    The job is written folded, as a Parquet folder; `--to et` writes a Chakra file for each rank, and
    `--to et --dialect astra` files that ASTRA-sim can run, as `etude convert` does.
    Numbers are sums over ranks: flops of all nodes, input bytes of communication (an all-gather's are what a rank
    contributes, a message counts once, at its sender); memory is that of the fullest rank.
    With `--program`, and where no block of Etude is for a config, PyTorch builds the model and runs it without numbers
    and without a GPU, as `etude collect --dry` does: `--zero 0` is DistributedDataParallel, `--zero 3` fully_shard of
    repeated blocks. Axes of a plan that this does not have are refused.
    """

    axes: Plan = part(Plan, PANEL, but=("host_bandwidth_bytes_per_s", "step_overhead_ns"), later=True)


@dataclass(frozen=True, slots=True)
class GenerateInputs:
    model: Model
    plan: Plan
    name: str
    limit: MemoryLimit
    files: JobFiles
    memory: OutputPlace | None


def generate_inputs(asked: Generate) -> GenerateInputs | DrivenInputs:
    only_one(asked, "model", "hf", "program")
    if asked.program is not None or asked.dry:
        return driven_inputs(asked)
    try:
        model, said = model_asked(asked)
    except UnmappedConfigError as problem:
        if config_file(asked) is None or problem.problem.startswith("`_class_name`"):
            raise
        if find_spec("transformers") is None:
            raise needs_transformers(problem) from None
        say(f"note: {problem.where}: {problem.problem}; PyTorch builds the model and runs it without numbers")
        return driven_inputs(asked)
    refuse_driven(asked)
    plan = plan_asked(asked, model, said)
    return GenerateInputs(model, plan, asked.name, MemoryLimit.of(asked), JobFiles.of(asked), memory_place(asked))


def run_generate(given: GenerateInputs | DrivenInputs) -> tuple[Generated | DrivenJob, dict[str, Any]]:
    """The job, and what ASTRA-sim cannot run of it."""
    if isinstance(given, DrivenInputs):
        return run_driven(given)
    from etude.make.generate import generate
    from etude.steps import check_memory

    found, limit = generate(given.model, given.plan, name=given.name), given.limit
    check_memory(found, limit.bytes, f"{found.model.name} on {limit.system}" if limit.system else found.model.name)
    return found, written(found, given)


def generate_assumptions(result: tuple[Generated | DrivenJob, dict[str, Any]]) -> list[str]:
    """Lines about what a dry run took for granted."""
    made = result[0]
    return [f"assumed: {one}" for one in made.found.assumptions] if isinstance(made, DrivenJob) else []


def readable(result: tuple[Generated | DrivenJob, dict[str, Any]]) -> dict[str, Any]:
    """The numbers of the job for a reader."""
    from etude.make.generate import by_group

    found = result[0]
    if isinstance(found, DrivenJob):
        return driven_figures(found)
    numbers = found.summary()
    worst = max(found.memory, key=lambda m: m.peak_bytes)
    moved = {
        label: ", ".join(f"{kind} {format_bytes(size)}" for kind, size in kinds.items())
        for label, kinds in by_group(found.job).items()
    }
    return {
        "model": f"{found.model.name}, {format_count(numbers['params'])} parameters",
        "ranks": f"{numbers['ranks']:,}, {numbers['distinct_traces']} distinct programs",
        "nodes": f"{numbers['nodes']:,}",
        "operations": format_count(numbers["flops"]),
        **{f"moved by {label}": told for label, told in moved.items()},
        **mapped_figures(found),
        "peak memory": f"{format_bytes(worst.peak_bytes)} (weights {format_bytes(worst.weights)}, gradients "
        f"{format_bytes(worst.gradients)}, optimizer {format_bytes(worst.optimizer)}, activations "
        f"{format_bytes(worst.moving_bytes)}; not all at the same time); {format_bytes(worst.reserved_bytes)} in "
        "segments of the allocator",
    }


# -- patterns ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GenerateMicro(JobOut):
    """One collective or pattern of messages, with or without concurrent compute

    etude generate micro all_reduce --ranks 64 --bytes 64MB -o job/
    etude generate micro shift:8 --ranks 32 --bytes 1MB,16MB --repeat 4 --to et -o job/
    etude generate micro all_gather --ranks 64 --group 8 --compute 2ms --overlap -o job/
    etude generate micro permutation --ranks 16 --seed 3 --no-write
    """

    pattern: str = argument(
        "text",
        "a collective (all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, ...) or messages: ring, shift:K, "
        "neighbours, ping_pong, exchange, bisection, incast, outcast, chain, permutation, all_pairs",
        like="broadcast",
    )
    ranks: int = figure("count", "ranks of the job", panel=PATTERN)
    size: str = figure(
        "text",
        "input bytes on each rank, `64MB`; several: `1KB,1MB,64MB`",
        "64MB",
        key="bytes",
        like="1KB,1MB",
        panel=PATTERN,
    )
    repeat: int = figure("count", "number of rounds over all sizes", 1, panel=PATTERN)
    group: int = figure("count", "ranks per group of a collective; 0: one group of all", 0, panel=PATTERN)
    stride: int = figure("count", "distance between the ranks of a group", 1, needs="group", panel=PATTERN)
    compute_ns: int = figure("time", "compute before each communication: `1ms`", 0, panel=PATTERN)
    overlap: bool = figure(
        "flag", "the next compute does not wait for the communication", False, needs="compute", panel=PATTERN
    )
    concurrent: bool = figure("flag", "communications do not wait for one another", False, panel=PATTERN)
    seed: int = figure("count", "seed of the pattern `permutation`", 0, panel=PATTERN)


@dataclass(frozen=True, slots=True)
class MicroInputs:
    pattern: str
    options: MicroOptions
    files: JobFiles


def micro_inputs(asked: GenerateMicro) -> MicroInputs:
    from etude.make.generate import MicroOptions

    if is_given(asked, "seed") and asked.pattern != "permutation":
        raise UsageError(f"{spelled(asked, 'seed')} is read only with {spelled(asked, 'pattern')} permutation")
    with naming(asked, "ranks", "bytes", "group", "stride"):
        options = MicroOptions(
            ranks=asked.ranks, sizes=tuple(parse_bytes(one) for one in asked.size.split(",")), repeat=asked.repeat,
            group=asked.group, stride=asked.stride, compute_ns=round(asked.compute_ns), overlap=asked.overlap,
            concurrent=asked.concurrent, seed=asked.seed,
        )  # fmt: skip
    return MicroInputs(asked.pattern, options, JobFiles.of(asked))


def run_micro(given: MicroInputs) -> tuple[Job, dict[str, list[str]]]:
    from etude.make.generate import micro

    job = micro(given.pattern, given.options)
    return job, write_job(job, given.files)
