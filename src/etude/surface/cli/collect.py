from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from etude.base.errors import UsageError
from etude.base.figures import argument, figure
from etude.base.parameters import is_given, spelled
from etude.base.talk import say
from etude.base.units import counted
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.capture.collect import CollectOptions, LaunchedProgram


RECORDED = "What is recorded"


@dataclass(frozen=True, kw_only=True)
class Collect:
    """Run a PyTorch command, unchanged, and record every rank of it; its exit code is passed on

    etude collect -o run/ -- python train.py
    etude collect -o run/ --steps 2 -- torchrun --nproc-per-node 4 train.py

    Options of `etude collect` come before the command: all from its first word on is the command's own. Then
    `etude report run/`, or `etude link run/ -o job/`.
    """

    command: tuple[str, ...] = argument(
        "command", "the command to run, after `--`", metavar="-- COMMAND...", like="python train.py"
    )
    out: str = figure("out", "the folder to record into", names=("-o",))
    steps: int = figure("count", "optimizer steps to record", 3, panel=RECORDED)
    warmup: int = figure("count", "optimizer steps to skip before recording", 6, zero=True, panel=RECORDED)
    whole: bool = figure("switch", "record everything, from `import torch` to the end", False, panel=RECORDED)
    name: str = figure("text", "prefix of the names of the files", "trace", like="gpt")
    stacks: bool = figure("switch", "also record Python frames", False, panel=RECORDED)
    allocations: bool = figure("switch", "also record memory allocations", False, names=("--memory",), panel=RECORDED)
    full_only: bool = figure(
        "switch", "record no steps lightly: times are then those under the profiler", False, panel=RECORDED
    )
    force: bool = figure("switch", "replace an earlier run", False, names=("-f",))


@dataclass(frozen=True, slots=True)
class CollectInputs:
    command: tuple[str, ...]
    out: Path
    options: "CollectOptions"
    whole: bool


def inputs(asked: Collect) -> CollectInputs:
    from etude.capture.collect import CollectOptions

    for name in ("steps", "warmup") if asked.whole else ():
        if is_given(asked, name):
            raise UsageError(f"{spelled(asked, name)} is not read with {spelled(asked, 'whole')}, which records all")
    steps = {"steps": None, "warmup": 0} if asked.whole else {"steps": asked.steps, "warmup": asked.warmup}
    more = {"name": asked.name, "stacks": asked.stacks, "memory": asked.allocations, "force": asked.force}
    more |= {} if asked.whole else {"full_only": asked.full_only}
    return CollectInputs(asked.command, Path(asked.out), CollectOptions.from_dict(more | steps), asked.whole)


def run(given: CollectInputs) -> "tuple[Path, LaunchedProgram]":
    from etude.capture.collect import launch

    return given.out, launch(given.command, given.out, given.options, whole=given.whole)


def show(result: "tuple[Path, LaunchedProgram]") -> None:
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


VERBS = (
    Verb(name="collect", asks=Collect, inputs=inputs, run=run, show=show, code=lambda result: result[1].exit_code),
)
