"""Every edit on random generated jobs, which have types, modules, phases and micro-batches: what it does to bytes and
FLOPs is counted node by node; the job stays sound, and its ranks folded."""

from dataclasses import dataclass
from random import Random

import pytest

import etude
from etude.base.errors import CycleError, EtudeError, UsageError
from etude.machine import open_system
from etude.make.generate import Plan, generate
from etude.make.transform import with_durations
from etude.make.transform.edits import Edit, apply_edits, edit_table
from etude.model.check.whole import check
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Kind
from etude.model.trace import Trace
from random_jobs import random_model, random_plan

EDITS = (
    "speed op=aten::mm by=2",
    "speed by=2 ranks=0",
    "drop op=aten::add*",
    "compress ratio=2 encode=400GB/s decode=600GB/s",
    "compress kind=message ratio=2 where=inside chunk=1kB encode=4GB/s",
    "compress ratio=2 encode=400GB/s decode=600GB/s when=pays",
    "dtype to=fp8",
    "fuse",
    "merge s=2 phase=optimizer*",
    "split into=3",
    "split into=2 kind=compute phase=backward*",
    "chunk size=1kB",
    "rounds op=aten::mm k=1 message=16B",
    "rounds kind=message k=2 message=16B",
    "relax",
    "relax in_flight=keep",
    "recompute module=*ffn*",
    "overlap stream=30",
    "offload what=weights rate=55GB/s",
    "offload what=activations module=*ffn* rate=55GB/s latency=5us",
    "offload what=optimizer size=1MB rate=55GB/s",
    "data sample=1kB read=1GB/s decode=2GB/s",
    "progress on=host cost=1us",
    "progress on=core cost=1us",
    "one_sided control=8B",
    "scale axis=world to={twice}",
)


@dataclass
class Total:
    sent: int = 0
    flops: int = 0
    moved: int = 0
    nodes: int = 0


def known(value: int) -> int:
    return 0 if value == UNKNOWN else value


def total(job: Job) -> Total:
    found, counted = Total(), dict[int, Total]()
    for at, rank in enumerate(job.ranks.tolist()):
        key = int(job.trace_of[at]) if rank not in job.values else -1 - rank
        if key not in counted:
            counted[key] = of_trace(job.trace(rank))
        one = counted[key]
        found = Total(found.sent + one.sent, found.flops + one.flops, found.moved + one.moved, found.nodes + one.nodes)
    return found


def of_trace(trace: Trace) -> Total:
    found = Total(nodes=len(trace))
    for kind, sent, flops, moved in zip(
        trace.kind.tolist(), trace.in_bytes.tolist(), trace.flops.tolist(), trace.tensor_bytes.tolist(), strict=True
    ):
        found.sent += known(sent) if kind in (Kind.COLL, Kind.SEND) else 0
        found.flops += known(flops)
        found.moved += known(moved)
    return found


def selected(job: Job, rank: int, text: str) -> list[int]:
    from etude.make.transform.edits.applying import _names
    from etude.make.transform.edits.table import TABLE
    from etude.make.transform.rewrite import ProgramView

    one, trace = Edit.parse(text), job.trace(rank)
    view = ProgramView(trace=trace, group_names=_names(job, rank, trace), ranks=job.ranks[[job.index(rank)]])
    return one.select.rows(view, TABLE[one.name].selects).tolist()


def members(job: Job, rank: int, trace: Trace, row: int) -> int:
    slot = int(trace.group[row])
    return job.world_size if slot < 0 else len(job.groups.ranks(int(job.group_slots(rank)[slot])))


def expected(job: Job, text: str, before: Total) -> Total:
    """What the edit makes of the sums, by what its selected nodes are; `moved` and `nodes` where they are told."""
    change = Total()
    name = text.split()[0]
    of_class: dict[int, Total] = {}
    for at, rank in enumerate(job.ranks.tolist()):
        if name in ("compress", "drop", "rounds", "one_sided", "recompute"):
            key = int(job.trace_of[at]) if rank not in job.values else -1 - rank
            if key not in of_class:
                of_class[key] = changed_by(name, job, rank, text)
            change.sent += of_class[key].sent
            change.flops += of_class[key].flops
    times = 2 if name == "scale" else 1
    return Total(before.sent * times + change.sent, before.flops * times + change.flops)


def changed_by(name: str, job: Job, rank: int, text: str) -> Total:
    trace, rows, found = job.trace(rank), selected(job, rank, text), Total()
    if name == "recompute":
        rows = recomputed(trace, rows)
    for row in rows:
        kind, sent, flops = int(trace.kind[row]), int(trace.in_bytes[row]), known(int(trace.flops[row]))
        if name == "drop":
            found.flops -= flops
        elif name == "recompute":
            found.flops += flops
        elif name == "one_sided":
            found.sent += 8 * members(job, rank, trace, row)
        elif name == "rounds" and "kind=message" in text:
            found.sent += 8  # either end sends once more: an answer, or a request
        elif name == "rounds":
            found.sent += 8 if job.world_size == 2 else 16
        elif kind == Kind.SEND or (kind == Kind.COLL and members(job, rank, trace, row) > 1):
            found.sent += round(sent / 2) - sent if sent > 0 else 0
    return found


def recomputed(trace: Trace, rows: list[int]) -> list[int]:
    """Forward rows whose module and micro-batch have a backward pass."""

    def part(row: int) -> tuple[int, int, str]:
        return int(trace.step[row]), int(trace.micro_batch[row]), trace.text("module", row)

    backward = {
        part(row)
        for row in range(len(trace))
        if trace.text("phase", row).startswith("backward")
        and trace.lane[row] >= 0
        and trace.micro_batch[row] != UNKNOWN
    }
    return [row for row in rows if trace.text("phase", row).startswith("forward") and part(row) in backward]


def drawn(seed: int) -> Job | None:
    random = Random(seed)
    model = random_model(random)
    try:
        job = generate(model, Plan.from_dict(random_plan(random, model))).job
    except EtudeError:
        return None
    return with_durations(job, open_system("dgx-h100").device)


def errors(job: Job) -> set[str]:
    return {finding.kind for finding in check(job) if finding.severity == "error"}


def hold(job: Job, text: str) -> bool:
    """Asserts what must be; False where the edit is refused, with its reason."""
    text = text.format(twice=2 * job.world_size)
    machine = open_system("dgx-h100").for_ranks(job.world_size)

    def edited(job: Job) -> Job:
        return apply_edits(job, [text], system=machine, times=lambda job: etude.simulate(job, machine).timing).job

    try:
        changed = edited(job)
    except (UsageError, CycleError):
        return False
    before, after = total(job), total(changed)
    assert errors(changed) <= errors(job)
    if "when=pays" not in text and not text.startswith("scale"):
        wanted = expected(job, text, before)
        assert (after.sent, after.flops) == (wanted.sent, wanted.flops)
    if text.startswith("scale"):
        assert after.flops == 2 * before.flops and after.nodes == 2 * before.nodes
    if text.startswith(("fuse", "dtype")):
        assert after.moved <= before.moved
    if text.startswith("split"):
        assert after.moved == before.moved
    if text.startswith(("speed", "relax", "overlap", "dtype")):
        assert after.nodes == before.nodes
    if "ranks=" not in text:
        assert etude.diff(changed, edited(etude.extend.expand(job))) is None
        assert len(changed.traces) <= 2 * len(job.traces)
    return True


@pytest.fixture(scope="module")
def jobs() -> list[Job]:
    """Vision on 16 ranks with a pipeline of four programs, language and recommendation on 4. Any seed will do; these
    are small."""
    return [job for seed in (63, 89, 126) if (job := drawn(seed)) is not None]


@pytest.mark.parametrize("text", EDITS)
def test_bytes_and_flops_are_those_of_the_selected_nodes(jobs: list[Job], text: str):
    assert len(jobs) == 3
    done = [hold(job, text) for job in jobs]
    assert any(done)


def test_an_axis_selects_the_calls_of_its_groups(jobs: list[Job]):
    seen = 0
    for job in jobs:
        calls: dict[str, int] = {}
        for rank in job.ranks.tolist():
            trace, bound = job.trace(rank), job.group_slots(rank).tolist()
            for kind, slot in zip(trace.kind.tolist(), trace.group.tolist(), strict=True):
                if kind == Kind.COLL:
                    name = job.groups.names[bound[slot]].partition(".")[0] if slot >= 0 else "world"
                    calls[name] = calls.get(name, 0) + 1
        for axis, count in calls.items():
            everyone = [g for g in range(len(job.groups)) if len(job.groups.ranks(g)) == job.world_size]
            if axis != "world" or not everyone:
                seen += 1
                assert apply_edits(job, [f"compress group={axis} ratio=1"]).steps[0].nodes == count, axis
    assert seen


def test_every_edit_is_tried():
    assert {text.split()[0] for text in EDITS} == {row["edit"] for row in edit_table()}
