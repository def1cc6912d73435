from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etude.base.errors import UsageError
from etude.base.figures import argument, figure
from etude.base.grammar import line
from etude.base.outputs import OutputPlace
from etude.base.parameters import is_given, spelled
from etude.base.talk import say
from etude.base.units import counted
from etude.steps.asked.jobs import JobSource
from etude.steps.asked.program import like_recording
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.capture.collect import CollectOptions, LaunchedProgram
    from etude.capture.dry import DryProgram, DrySettings


RECORDED = "What is recorded"
DRY = "Without the machine"


@dataclass(frozen=True, kw_only=True)
class Collect:
    """Run a PyTorch command, unchanged, and record every rank of it; its exit code is passed on

    etude collect -o run/ -- python train.py
    etude collect -o run/ --steps 2 -- torchrun --nproc-per-node 4 train.py
    etude collect --dry --world 512 --device h100 -o job/ -- python train.py

    Options of `etude collect` come before the command: all from its first word on is the command's own. Then
    `etude report run/`, or `etude link run/ -o job/`.

    With `--dry` nothing is computed and no GPU is needed: tensors have shapes and no numbers, collectives are answered
    at once. A few ranks run, the others follow from them, and a job of all of them is written, without times: `etude
    simulate job/ --system dgx-h100` gives them. The program ends after the steps that are recorded; where no optimizer
    steps, they are calls of its largest model.
    """

    command: tuple[str, ...] = argument(
        "command", "the command to run, after `--`", metavar="-- COMMAND...", like="python train.py"
    )
    out: str = figure("out", "the folder to record into", names=("-o",))
    steps: int = figure("count", "optimizer steps to record; 1 with --dry", 3, panel=RECORDED, like=2)
    warmup: int = figure(
        "count", "optimizer steps to skip before recording; 1 with --dry", 6, zero=True, panel=RECORDED, like=2
    )
    whole: bool = figure("switch", "record everything, from `import torch` to the end", False, panel=RECORDED)
    name: str = figure("text", "prefix of the names of the files", "trace", like="gpt")
    stacks: bool = figure("switch", "also record Python frames", False, panel=RECORDED)
    allocations: bool = figure("switch", "also record memory allocations", False, names=("--memory",), panel=RECORDED)
    full_only: bool = figure(
        "switch", "record no steps lightly: times are then those under the profiler", False, panel=RECORDED
    )
    dry: bool = figure("switch", "run the program without numbers and without its machine", False, panel=DRY)
    world: int | None = figure(
        "count", "ranks of the program; default: as its launcher says, or 1", None, needs="dry", panel=DRY
    )
    ranks: str | None = figure(
        "text",
        "run these ranks, and write them alone",
        None,
        needs="dry",
        panel=DRY,
        like="0,1",
        metavar="0,8,504",
        plain=True,
    )
    node: int = figure("count", "ranks of a node, where the command does not say so", 8, needs="dry", panel=DRY)
    device: str | None = figure(
        "text",
        "the GPU that the program finds, of the catalogue; default: none",
        None,
        needs="dry",
        panel=DRY,
        like="h100",
        metavar="NAME",
        plain=True,
    )
    answer: tuple[str, ...] = figure(
        "several",
        "value of a tensor that the program decides by, by its name or the line that asks: loss=2.0, train.py:31=0",
        (),
        needs="dry",
        panel=DRY,
        like=("loss=2.0",),
        metavar="NAME=VALUE",
        plain=True,
    )
    times_of: str | None = figure(
        "path",
        "a recording of the program at another size: operators and the host take as long as there",
        None,
        needs="dry",
        panel=DRY,
    )
    json: bool = figure("switch", "print JSON", False, needs="dry")
    force: bool = figure("switch", "replace an earlier run", False, names=("-f",))


@dataclass(frozen=True, slots=True)
class CollectInputs:
    command: tuple[str, ...]
    out: Path
    options: "CollectOptions"
    whole: bool
    dry: "DryInputs | None" = None


@dataclass(frozen=True, slots=True)
class DryInputs:
    """A dry run that was asked for."""

    settings: "DrySettings"
    ranks: tuple[int, ...]
    device: str | None
    times_of: JobSource | None
    json: bool
    force: bool
    name: str


def inputs(asked: Collect) -> CollectInputs:
    from etude.capture.collect import CollectOptions

    for name in ("steps", "warmup") if asked.whole else ():
        if is_given(asked, name):
            raise UsageError(f"{spelled(asked, name)} is not read with {spelled(asked, 'whole')}, which records all")
    if asked.dry:
        return CollectInputs(asked.command, Path(asked.out), CollectOptions(), asked.whole, _dry(asked))
    steps = {"steps": None, "warmup": 0} if asked.whole else {"steps": asked.steps, "warmup": asked.warmup}
    more = {"name": asked.name, "stacks": asked.stacks, "memory": asked.allocations, "force": asked.force}
    more |= {} if asked.whole else {"full_only": asked.full_only}
    return CollectInputs(asked.command, Path(asked.out), CollectOptions.from_dict(more | steps), asked.whole)


def _dry(asked: Collect) -> DryInputs:
    from etude.capture.dry import DrySettings, stated_answers

    for name in ("stacks", "allocations", "full_only"):
        if is_given(asked, name):
            raise UsageError(f"{spelled(asked, name)} is not read with {spelled(asked, 'dry')}, which measures nothing")
    OutputPlace.at(asked.out, asked.force)
    steps = asked.steps if is_given(asked, "steps") else 1
    warmup = asked.warmup if is_given(asked, "warmup") else 1
    settings = DrySettings(
        world=asked.world or 0,
        local_world=asked.node,
        warmup=0 if asked.whole else warmup,
        steps=0 if asked.whole else steps,
        answers=stated_answers(asked.answer),
    )
    return DryInputs(
        settings=settings,
        ranks=_ranks(asked.ranks),
        device=asked.device,
        json=asked.json,
        force=asked.force,
        name=asked.name,
        times_of=None if asked.times_of is None else JobSource(Path(asked.times_of)),
    )


def _ranks(given: str | None) -> tuple[int, ...]:
    pieces = [] if given is None else line(given, "--ranks", "0,8,504").split(",")
    return tuple(sorted({piece.count(zero=True) for piece in pieces}))


def run(given: CollectInputs) -> "tuple[Path, LaunchedProgram] | DryResult":
    if given.dry is not None:
        return _run_dry(given, given.dry)
    from etude.capture.collect import launch

    return given.out, launch(given.command, given.out, given.options, whole=given.whole)


@dataclass(frozen=True, slots=True)
class DryResult:
    """A dry run that is over, and where its job is."""

    out: Path
    program: "DryProgram"
    json: bool
    exit_code: int = 0


def _run_dry(given: CollectInputs, asked: DryInputs) -> DryResult:
    from etude.base.files import writing
    from etude.capture.dry import dry_program
    from etude.store import columns

    name = asked.name if asked.name != "trace" else Path(given.out).name
    times = None if asked.times_of is None else asked.times_of.open()
    found = dry_program(given.command, name=name, ranks=asked.ranks, device=asked.device, settings=asked.settings)
    if times is not None:
        found = like_recording(found, times, asked.device)
    with writing(given.out, force=asked.force) as folder:
        folder.mkdir()
        columns.write_job(found.job, folder)
    return DryResult(given.out, found, asked.json)


def _show_dry(result: DryResult) -> None:
    from etude.base.units import format_bytes, format_count
    from etude.capture.dry import dry_record
    from etude.surface.cli.output import emit

    found = dry_record(result.program)
    if result.json:
        emit(found, json=True)
        return
    memory = result.program.fullest
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.by_class.items())
    sent = ", ".join(f"{name} {format_bytes(size)}" for name, size in found["comm_bytes_by_type"].items())
    say(f"etude collect: {counted(found['ranks'], 'rank')}, {counted(found['nodes'], 'node')}, in {result.out}")
    say(f"operations      {format_count(found['flops'])}")
    say(f"communication   {sent or 'none'}")
    say(
        f"peak memory     {format_bytes(memory.peak_allocated_bytes)} ({parts}); "
        f"{format_bytes(memory.peak_reserved_bytes)} in segments of the allocator, "
        f"{format_bytes(memory.device_bytes)} of the device"
    )
    for assumption in result.program.assumptions:
        say(f"assumed: {assumption}")


def show(result: "tuple[Path, LaunchedProgram] | DryResult") -> None:
    if isinstance(result, DryResult):
        _show_dry(result)
        return
    out, done = result
    for problem in done.problems:
        say(f"etude collect: {problem}")
    if done.manifests:
        counts = sorted({m["steps"]["recorded"] for m in done.manifests})
        shown = f"{'-'.join(map(str, counts))} steps each" if counts[-1] else "steps not separated"
        each = {n for m in done.manifests for n in m["steps"].get("optimizer_steps") or ()}
        of_several = f" ({max(each)} optimizer steps in each)" if len(each) == 1 and max(each) > 1 else ""
        say(f"etude collect: {counted(len(done.manifests), 'rank')}, {shown}{of_several}, in {out}")
    if done.beside:
        named = ", ".join(f"{m['name']}.process{m['process']['pid']} ({m['process']['name']})" for m in done.beside)
        say(f"etude collect: other processes, not part of the job: {named}")


def _code(result: "tuple[Path, LaunchedProgram] | DryResult") -> int:
    return result.exit_code if isinstance(result, DryResult) else result[1].exit_code


VERBS = (Verb("collect", Collect, inputs, run, show=show, code=_code),)
