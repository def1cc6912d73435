from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etude.base.figures import part
from etude.base.outputs import Place
from etude.make.generate import Plan
from etude.steps.asked.job_out import (
    Files,
    JobMade,
    Limit,
    LimitInput,
    MemoryOut,
    generated_record,
    memory_place,
    written,
)
from etude.steps.asked.plans import PANEL, ModelOrConfig, PlanInput, mapped_figures, model_asked, plan_asked
from etude.surface.cli import sections, serving
from etude.surface.cli.output import emit
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.make.generate import Generated
    from etude.make.generate.model import Model


@dataclass(frozen=True, kw_only=True)
class Generate(MemoryOut, ModelOrConfig, PlanInput, JobMade, LimitInput):
    """The job of one training step, or of serving, from a model and a plan

    etude generate llama3-70b --gpus 512 --tp 8 --pp 4 --cp 2 --schedule interleaved:4 \\
        --global-batch 512 --recompute selective --zero 1 -o job/
    etude generate qwen3-30b-a3b --gpus 32 --ep 16 --seq 2048 --global-batch 32 --memory dgx-h100 -o moe/
    etude generate llama3-8b --gpus 8 --zero 3 --lengths 512:0.6,2048:0.4 --no-write
    etude generate llama3-8b --gpus 8 --cp 8 --seq 8192 --global-batch 8 --batching packed \\
        --lengths 512:0.6,2048:0.4 --cp-map lpt --block 512 -o job/
    etude generate --hf config.json --gpus 64 --zero 3 --to et --dialect astra -o job/

    The job is written folded, as a Parquet folder; `--to et` writes a Chakra file for each rank, and
    `--to et --dialect astra` files that ASTRA-sim can run, as `etude convert` does.
    Numbers are sums over ranks: flops of all nodes, input bytes of communication (an all-gather's are what a rank
    contributes, a message counts once, at its sender); memory is that of the fullest rank.
    """

    axes: Plan = part(Plan, PANEL, but=("host_bandwidth_bytes_per_s", "step_overhead_ns"), later=True)


@dataclass(frozen=True, slots=True)
class GenerateInputs:
    model: "Model"
    plan: Plan
    name: str
    limit: Limit
    files: Files
    memory: Place | None


def inputs(asked: Generate) -> GenerateInputs:
    model, said = model_asked(asked)
    plan = plan_asked(asked, model, said)
    return GenerateInputs(model, plan, asked.name, Limit.of(asked), Files.of(asked), memory_place(asked))


def run(given: GenerateInputs) -> "tuple[Generated, dict[str, Any]]":
    """The job, and what ASTRA-sim cannot run of it."""
    from etude.make.generate import generate
    from etude.steps import check_memory

    found, limit = generate(given.model, given.plan, name=given.name), given.limit
    check_memory(found, limit.bytes, f"{found.model.name} on {limit.system}" if limit.system else found.model.name)
    return found, written(found, given)


def show(result: "tuple[Generated, dict[str, Any]]") -> None:
    from etude.base.units import format_bytes, format_count
    from etude.make.generate import by_group

    found = result[0]
    numbers = found.summary()
    worst = max(found.memory, key=lambda m: m.peak_bytes)
    moved = {
        label: ", ".join(f"{kind} {format_bytes(size)}" for kind, size in kinds.items())
        for label, kinds in by_group(found.job).items()
    }
    emit({
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
    })  # fmt: skip


def meant(args: list[str]) -> tuple[str, list[str]]:
    """`generate MODEL --serve` is `generate serve MODEL`, `generate --sections FILE` is `generate sections FILE`."""
    return by_mode("generate", args)


def by_mode(word: str, args: list[str]) -> tuple[str, list[str]]:
    """The verb behind a word that an old flag says, and what is left of the words."""
    before = args[: args.index("--") if "--" in args else None]
    if any(arg.partition("=")[0] == "--sections" for arg in before):
        return f"{word} sections", args
    if "--serve" in before:
        at = args.index("--serve")
        return f"{word} serve", args[:at] + args[at + 1 :]
    return "", args


VERBS: tuple[Verb[Any, Any, Any], ...] = (
    Verb(name="generate", asks=Generate, inputs=inputs, run=run, record=generated_record, show=show),
    serving.GENERATE,
    sections.GENERATE,
)
