"""Programs that were run without numbers, against recordings of the same programs on gloo ranks of this host.

    python benchmarks/validate_dry_programs.py [--only NAME ...] [--keep FOLDER]

Each program (those of `conformance.py` and of `dry_programs.py`) is recorded with `etude collect` on 1 to 4 ranks, and
run again with `etude collect --dry`. Of every rank, the operators of a step and its communications are compared in
order.

- An operator of the recording is one that PyTorch's dispatcher hands to a kernel: not what it makes of a composite one
  before, nor what a kernel calls inside. Views and empty tensors do no work and are left out, as in a job. It is its
  name, and the shape and type of every tensor that it is given.
- A communication is its kind, its bytes, and the members of its group or the ends of its message.

Exit code 1 if something differs that is not in `EXCEPTIONS`.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import importlib.util
import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed.fsdp  # its operators
from conformance import ANSWERS, HERE, call_of, recorded, shown
from conformance_formulas import GENERATED, PROGRAMS, RECORDED, WARMUP, Call

import etude
from etude.base.errors import EtudeError
from etude.capture.dry import DrySettings, dry_program
from etude.capture.dry.texts import NO_WORK
from etude.model.job import Job
from etude.model.schema import Kind


class Operator(NamedTuple):
    """An operator, and the tensors that it is given."""

    name: str
    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{kind}{list(shape)}' for kind, shape in self.tensors)})"


Step = list[Operator]


class Difference(NamedTuple):
    """Operators that one side alone has, and why that is right."""

    recorded: str
    dry: str
    programs: tuple[str, ...]
    reason: str


SHARDED = ("fsdp2", "fsdp2_kept", "hsdp", "titan", "accumulated_fsdp2", "own_shards")
PART = "gloo reduces all of a tensor, and copies the rank's part of it when it is waited for"
STOPPED = "recomputation ends inside of this operator: PyTorch's recording has only the kernel that it called"
PLACE = "the place of a rank in its mesh is computed beside the program"
EXCEPTIONS = (
    Difference("aten::copy_", "", SHARDED, PART),
    Difference("aten::clamp_min", "aten::relu", ("checkpointing",), STOPPED),
    *(Difference(name, "", ("titan",), PLACE) for name in ("aten::eq", "aten::nonzero")),
)


@dataclass
class Subject:
    """A program, and what became of it."""

    name: str
    says: str
    ranks: int
    command: list[str]
    needs: str = ""
    optimizers: int = 1
    """0: it is recorded from its first call of a module to its end, as one step."""
    problems: list[str] = field(default_factory=list)
    exceptions: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    """Operators of all ranks and steps on both sides, those that are equal, and communications."""
    missing: str = ""


def subjects() -> list[Subject]:
    own = [
        Subject(name, says, 1, [sys.executable, str(HERE / "dry_programs.py"), name], needs)
        for name, says, needs in ALONE
    ]
    script = str(HERE / "conformance_programs.py")
    for file, kinds in (("dry_later_programs.py", LATER), ("dry_unseen_programs.py", UNSEEN)):
        words = [sys.executable, str(HERE / file)]
        own += [Subject(name, says, ranks, [*words, str(ranks), name]) for name, says, ranks in kinds]
    return own + [
        Subject(p.name, p.says, p.ranks, [sys.executable, script, str(p.ranks), p.name], p.needs, p.optimizers)
        for p in PROGRAMS
    ]


ALONE = (
    ("plain", "no parallelism: layers, AdamW, accumulated gradients", ""),
    ("llama", "`transformers`: Llama, a training step", "transformers"),
    ("mixtral", "`transformers`: Mixtral, experts", "transformers"),
    ("t5", "`transformers`: T5, encoder and decoder", "transformers"),
)
LATER = (
    ("accumulated_fsdp2", "FSDP2: gradients of three batches, clipping, a mean of weights", 2),
    ("zero1", "DDP, `no_sync`, `ZeroRedundancyOptimizer`", 2),
    ("interleaved", "PP: `ScheduleInterleaved1F1B`, two stages a rank", 2),
    ("unet", "a diffusion UNet, saved tensors moved by hooks, a model that follows", 1),
    ("vision", "a vision transformer, compiled, layers left out by chance", 1),
    ("uneven", "`all_to_all_single` and `all_gather` of uneven parts", 3),
)
"""Written when dry runs of the others stood."""
UNSEEN = (
    ("critic", "DDP: a picture maker and a critic with spectral norms, an optimizer each", 2),
    ("translator", "TP: encoder and decoder, tied words", 2),
    ("three_stages", "PP: `ScheduleInterleaved1F1B` of three ranks, a norm over all", 3),
    ("own_shards", "weights gathered ahead and gradients scattered by hand", 2),
    ("own_tensor_parallel", "TP by `autograd.Function`s, a loss over split words", 2),
    ("local_steps", "autocast, accumulated gradients, a mean of weights every second step", 2),
)
"""Written when these stood as well."""


# -- the recording -----------------------------------------------------------------------------------------------------


def recorded_steps(folder: Path, rank: int) -> list[Step]:
    """Operators of each step of a rank, in the order in which they began, on the thread that takes the steps: gloo's
    threads copy parts of what is gathered, which is no operator of the program."""
    file, timeline = (folder / f"trace.rank{rank}.{kind}.json.gz" for kind in ("et", "kineto"))
    nodes = {_attribute(node, "rf_id"): node for node in _read(file)["nodes"]}
    events = _main_thread(_read(timeline)["traceEvents"])
    callers = _callers(events)
    # A class of tensors of its own (a DTensor, say) calls operators itself.
    own_class = {callers[i] for i, event in enumerate(events) if event["name"] == "PythonSubclass"}
    handed: list[int | None] = []  # the operator that each event is inside of
    steps: list[Step] = [[]]
    for i, event in enumerate(events):
        if event["name"].startswith("ProfilerStep#"):
            steps.append([])
        inside = handed[callers[i]] if callers[i] >= 0 else None
        node = nodes.get(event["args"].get("Record function id"))
        schema = _attribute(node, "op_schema") if node is not None else ""
        is_handed = bool(schema) and not _composite(schema) and i not in own_class
        handed.append(inside if inside is not None or not is_handed else i)
        saves = inside == callers[i] and event["name"] == "aten::clone" and _is_in_place(events[inside]["name"])
        if is_handed and (inside is None or saves) and _works(node["name"], schema):
            made = Operator(node["name"], tensors(node["inputs"]["shapes"], node["inputs"]["types"]))
            # Autograd keeps what an operator in place will overwrite: before it, though the recording has it inside.
            steps[-1].insert(len(steps[-1]) - int(saves), made)
    return steps[1:] if len(steps) > 1 else steps


def _is_in_place(name: str) -> bool:
    return name.startswith("aten::") and name.endswith("_")


def _callers(events: list[Any]) -> list[int]:
    """The event that each one is directly inside of, -1 if none. A call of gloo that ends on another thread ends no
    later here than the operator that made it."""
    found: list[int] = []
    open_events: list[tuple[int, float]] = []
    for i, event in enumerate(events):
        while open_events and open_events[-1][1] <= event["ts"]:
            open_events.pop()
        caller, until = open_events[-1] if open_events else (-1, float("inf"))
        found.append(caller)
        open_events.append((i, min(until, event["ts"] + event["dur"])))
    return found


def _read(file: Path) -> Any:
    return json.loads(gzip.decompress(file.read_bytes()))


def _attribute(node: Any, name: str) -> Any:
    return next((a["value"] for a in node["attrs"] if a["name"] == name), "")


def _main_thread(events: list[Any]) -> list[Any]:
    """Operators and steps of the thread that has most of them, outer ones before what is inside of them.

    The timeline says what is inside of what: the stack of PyTorch's execution traces loses its place where a call of
    gloo ends on another thread."""
    found = [event for event in events if event.get("cat") in ("cpu_op", "user_annotation") and event["ph"] == "X"]
    thread = Counter(event["tid"] for event in found).most_common(1)[0][0]
    return sorted((event for event in found if event["tid"] == thread), key=lambda e: (e["ts"], -e["dur"]))


def _composite(schema: str) -> bool:
    """Whether the dispatcher makes other operators of it before it comes to a kernel."""
    name = schema.partition("(")[0]
    if not torch._C._dispatch_has_kernel(name):
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(name, "CompositeImplicitAutograd") and not has(name, "CPU")


def _works(name: str, schema: str) -> bool:
    returns = torch._C.parse_schema(schema).returns
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
    return not views and name not in NO_WORK | WRAPS and not name.startswith(("profiler::", "prim::"))


WRAPS = {"_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"}
"""What waits for a communication is an edge of a job, and no node."""


def tensors(shapes: Sequence[Any], types: Sequence[str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Type and shape of each tensor among arguments, those of lists one after the other."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for shape, kind in zip(shapes, types, strict=True):
        if kind.startswith("GenericList["):
            found += tensors(shape, _parts(kind[len("GenericList[") : -1])) if "Tensor" in kind else ()
        elif kind.startswith("Tensor(") and "nullptr" not in kind:
            found.append((kind.removeprefix("Tensor(").removesuffix(")"), tuple(shape)))
    return tuple(found)


def _parts(kinds: str) -> list[str]:
    """Types of a list, which may be lists."""
    found, depth = [""], 0
    for letter in kinds:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


# -- the dry run -------------------------------------------------------------------------------------------------------


def dry_steps(job: Job, rank: int) -> list[Step]:
    trace = job.trace(rank)
    found: dict[int, Step] = {}
    for i in range(len(trace)):
        shapes, types = (json.loads(trace.text(column, i)) for column in ("in_shapes", "in_types"))
        found.setdefault(int(trace.step[i]), []).append(Operator(trace.text("name", i), tensors(shapes, types)))
    return [found[number] for number in sorted(found)]


def calls(job: Job, rank: int) -> list[Call]:
    trace = job.trace(rank)
    rows = np.flatnonzero(np.isin(trace.kind, (Kind.SEND, Kind.RECV, Kind.COLL)))
    return [call_of(job, rank, i) for i in rows.tolist()]


# -- both --------------------------------------------------------------------------------------------------------------


def tried(subject: Subject, folder: Path) -> None:
    if subject.needs and importlib.util.find_spec(subject.needs) is None:
        subject.missing = f"{subject.needs} is not installed"
        return
    if not any(folder.glob("*.manifest.json")) and (problem := recorded(subject.command, folder)):
        subject.problems.append(problem)
        return
    warmup, steps = (WARMUP, RECORDED) if subject.optimizers else (0, GENERATED)
    settings = DrySettings(world=subject.ranks, warmup=warmup, steps=steps, answers=ANSWERS.get(subject.name, {}))
    try:
        real = etude.open(folder)
        job = dry_program(["python", *subject.command[1:]], name=subject.name, settings=settings).job
    except EtudeError as problem:
        subject.problems.append(str(problem))
        return
    subject.counts = Counter()
    for rank in range(subject.ranks):
        found = dry_steps(job, rank)
        found = found if subject.optimizers else [list(itertools.chain.from_iterable(found))]
        compare(subject, rank, recorded_steps(folder, rank), found)
        communications(subject, rank, calls(real, rank), calls(job, rank))


def compare(subject: Subject, rank: int, wanted: list[Step], found: list[Step]) -> None:
    if len(wanted) != len(found):
        subject.problems.append(f"rank {rank}: {len(wanted)} steps were recorded, and {len(found)} dry")
    for number, (theirs, ours) in enumerate(zip(wanted, found, strict=False)):
        match = difflib.SequenceMatcher(None, theirs, ours, autojunk=False)
        equal = sum(block.size for block in match.get_matching_blocks())
        subject.counts.update(recorded=len(theirs), dry=len(ours), equal=equal)
        for tag, a, b, c, d in match.get_opcodes():
            if tag != "equal" and not listed(subject, theirs[a:b], ours[c:d]):
                subject.problems.append(f"rank {rank} step {number} at {a}:")
                subject.problems += [f"    - {one}" for one in theirs[a:b]] + [f"    + {one}" for one in ours[c:d]]


def listed(subject: Subject, theirs: Step, ours: Step) -> bool:
    """Whether all that differs here is an exception of the program; counts them."""
    pairs = list(itertools.zip_longest((one.name for one in theirs), (one.name for one in ours), fillvalue=""))
    known = {(one.recorded, one.dry): one.reason for one in EXCEPTIONS if subject.name in one.programs}
    if not all(pair in known for pair in pairs):
        return False
    subject.exceptions.update(known[pair] for pair in pairs)
    return True


def communications(subject: Subject, rank: int, wanted: list[Call], found: list[Call]) -> None:
    subject.counts.update(calls=len(wanted))
    if wanted == found:
        return
    pairs = itertools.zip_longest(wanted, found)
    first, one, other = next((i, a, b) for i, (a, b) in enumerate(pairs) if a != b)
    say = lambda call: shown(call) if call is not None else "none"  # noqa: E731
    subject.problems.append(
        f"rank {rank}: {len(wanted)} communications, {len(found)} dry; {first} is {say(one)}, dry {say(other)}"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Dry runs against recordings of the same programs.")
    parser.add_argument("--only", action="append", help="this program; repeatable")
    parser.add_argument("--keep", type=Path, help="folder of recordings; what is there is compared again")
    asked = parser.parse_args(arguments)
    print(f"{'program':16}{'ranks':>6}{'recorded':>10}{'dry':>8}{'equal':>8}{'comms':>7}  operators, shapes and order")
    done = []
    with tempfile.TemporaryDirectory() as made:
        for subject in subjects():
            if not asked.only or subject.name in asked.only:
                tried(subject, (asked.keep or Path(made)) / subject.name)
                done.append(subject)
                print("\n".join(told(subject)), flush=True)
    there = [one for one in done if not one.missing]
    bad, same = sum(bool(one.problems) for one in there), sum(not one.problems and not one.exceptions for one in there)
    print(
        f"{same} of {len(there)} programs are the same; {len(there) - bad - same} but for what is listed; {bad} differ"
    )
    return 1 if bad else 0


def told(subject: Subject) -> list[str]:
    if subject.missing:
        return [f"{subject.name:16}{subject.missing}"]
    count = subject.counts
    verdict = "differ" if subject.problems else "the same" if not subject.exceptions else "the same but for"
    line = f"{subject.name:16}{subject.ranks:>6}{count['recorded']:>10,}{count['dry']:>8,}{count['equal']:>8,}"
    found = [f"{line}{count['calls']:>7,}  {verdict}"]
    found += [f"    {times} x {reason}" for reason, times in subject.exceptions.items()]
    return found + [f"    {problem}" for problem in subject.problems[:MOST_LINES]]


MOST_LINES = 24


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
