"""What holds for every edit: nothing without a reason, nothing to nodes that are not selected, nothing broken."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etude
from etude.base.errors import CycleError, DeadlockError, UsageError
from etude.make.transform.edits import Edit, apply_edits, edit_table
from etude.model.build import TraceBuilder, job_of
from etude.model.check.whole import check
from etude.model.job import Job
from etude.model.schema import NODE, Collective, Kind
from etude.model.trace import Trace
from etude.store import chakra
from simulated_jobs import random_job, symmetric_job, system

NEUTRAL = {
    "speed": ["speed by=1"],
    "drop": ["drop module=nothing-of-this-name"],
    "compress": ["compress ratio=1", "compress ratio=1 where=inside chunk=8", "compress ratio=2 bytes=1TB.."],
    "dtype": ["dtype to=fp8"],  # nothing in these jobs says its type
    "fuse": ["fuse chain=nothing-of-this-name"],
    "merge": ["merge s=1"],
    "split": ["split into=1"],
    "chunk": ["chunk size=1TB"],
    "rounds": ["rounds k=0", "rounds k=1 kind=message message=64B"],
    "relax": ["relax"],  # nor its micro-batch
    "recompute": ["recompute"],
    "overlap": ["overlap stream=9 bytes=1TB.."],
    "one_sided": ["one_sided control=0B"],
    "offload": ["offload what=weights part=0", "offload what=activations"],
    "data": ["data sample=1MB"],
    "progress": ["progress on=host cost=0"],
    "scale": ["scale axis=world to={world}"],
}
ACTIVE = {
    "speed": ["speed by=2", "speed by=0.5 ranks=0"],
    "drop": ["drop", "drop step=3"],
    "compress": [
        "compress ratio=2",
        "compress ratio=2 encode=4GB/s decode=2GB/s fixed=5ns",
        "compress ratio=1.5 encode=1GB/s where=inside chunk=16B",
        "compress ratio=2 encode=1GB/s decode=1GB/s when=pays link=1GB/s",
        "compress kind=message ratio=weights:2,activations:4 decode=1GB/s",
    ],
    "dtype": ["dtype to=fp8 kind=node"],
    "fuse": ["fuse", "fuse chain=*"],
    "merge": ["merge s=2", "merge s=3 collective=all_reduce,all_gather"],
    "split": ["split into=3", "split into=2 kind=compute"],
    "chunk": ["chunk size=30B"],
    "rounds": ["rounds k=2 message=16B factor=2", "rounds k=3 kind=message message=16B"],
    "relax": ["relax", "relax in_flight=keep"],
    "recompute": ["recompute"],
    "overlap": ["overlap stream=9"],
    "one_sided": ["one_sided control=8B", "one_sided control=8B collective=all_to_all"],
    "offload": [
        "offload what=weights size=64B rate=1GB/s",
        "offload what=experts size=8B rate=1GB/s prefetch=0 ranks=0",
    ],
    "data": ["data sample=64B read=1GB/s decode=1GB/s lanes=own workers=2 rate=1GB/s"],
    "progress": ["progress on=host cost=5ns", "progress on=dpu cost=5ns traffic=3 memory=1GB/s"],
    "scale": ["scale axis=world to={twice}"],
}
NAMES = [row["edit"] for row in edit_table()]
ALL_ACTIVE = [text for texts in ACTIVE.values() for text in texts]


def on(job: Job, text: str) -> str:
    """The edit, with numbers of this job in it."""
    return text.format(world=job.world_size, twice=2 * job.world_size)


def errors(job: Job) -> set[str]:
    return {finding.kind for finding in check(job) if finding.severity == "error"}


def drawn(seed: int, *, symmetric: bool) -> Job:
    rng = random.Random(seed)
    job = symmetric_job(rng) if symmetric else random_job(rng, broken=False)
    return job.replace(timing=None) if seed % 2 else job


def test_every_edit_of_the_catalogue_is_tried_here():
    assert set(NAMES) == set(NEUTRAL) == set(ACTIVE)


@pytest.mark.parametrize("text", [text for texts in NEUTRAL.values() for text in texts])
@settings(max_examples=3)
@given(seed=st.integers(0, 10_000), symmetric=st.booleans())
def test_neutral_parameters_change_nothing(text: str, seed: int, symmetric: bool):
    job = drawn(seed, symmetric=symmetric)
    changed = edited_or_none(job, on(job, text)) if text.startswith("scale") else etude.edit(job, text)
    assert changed is None or changed is job or etude.diff(job, changed) is None


@pytest.mark.parametrize("text", ALL_ACTIVE)
@settings(max_examples=3)
@given(seed=st.integers(0, 10_000), symmetric=st.booleans())
def test_jobs_stay_sound_and_fold_alike(text: str, seed: int, symmetric: bool):
    job = drawn(seed, symmetric=symmetric)
    text = on(job, text)
    changed = edited_or_none(job, text)
    if changed is None:
        return
    assert errors(changed) <= errors(job)
    assert len(changed.ranks) != len(job.ranks) or untouched_nodes_are_kept(job, changed, text) >= 0
    assert etude.diff(changed, etude.edit(etude.extend.fold(job), text)) is None
    assert etude.diff(etude.extend.fold(changed), changed) is None


def edited_or_none(job: Job, text: str) -> Job | None:
    """None where the edit says why it cannot be."""
    try:
        return etude.edit(job, text)
    except (UsageError, CycleError):
        return None


def untouched_nodes_are_kept(job: Job, changed: Job, text: str) -> int:
    """Asserts that nodes which are not selected keep every column; returns how many there are."""
    select, count = Edit.parse(text), 0
    for rank in job.ranks.tolist():
        before, after = job.trace(rank), changed.trace(rank)
        there = dict(zip(after.source_id.tolist(), range(len(after)), strict=True))
        chosen = set(selected_rows(job, rank, select).tolist())
        rows = [row for row in range(len(before)) if row not in chosen]
        at = [there[i] for i in before.source_id[rows].tolist()]
        for c in NODE:
            if c.name not in ("parent", "layout", "lane"):
                assert cells(before, c.name, rows) == cells(after, c.name, at), (rank, c.name)
        assert lanes(before, rows) == lanes(after, at)
        assert [said(before, row) for row in rows] == [said(after, row) for row in at]
        assert at == sorted(at)
        count += len(rows)
    return count


def selected_rows(job: Job, rank: int, one: Edit) -> np.ndarray:
    from etude.make.transform.edits.applying import _names
    from etude.make.transform.edits.table import TABLE
    from etude.make.transform.rewrite import ProgramView

    trace = job.trace(rank)
    view = ProgramView(trace=trace, group_names=_names(job, rank, trace), ranks=np.array([rank], np.int32))
    return one.select.rows(view, TABLE[one.name].selects)


def cells(trace: Trace, column: str, rows: list[int]) -> list[object]:
    if any(c.name == column and c.is_text for c in NODE):
        return [trace.text(column, row) for row in rows]
    return getattr(trace, column)[rows].tolist()


def lanes(trace: Trace, rows: list[int]) -> list[tuple[int, int]]:
    kind, number = np.append(trace.lane_kind, 0), np.append(trace.lane_id, 0)
    return [(int(kind[trace.lane[row]]), int(number[trace.lane[row]])) for row in rows]


def said(trace: Trace, row: int) -> list[str]:
    """Attributes by name; reasons of edges apart, which change with the edges."""
    return [attr.name for attr, _ in trace.attributes(row) if attr.column != "dep_why"]


@pytest.mark.parametrize("text", ALL_ACTIVE)
def test_what_comes_out_simulates(text: str):
    """Every job that ran still does, and says so when it cannot."""
    machine = system(devices=16)
    for seed in range(4):
        job = drawn(seed, symmetric=True)
        try:
            before = etude.simulate(job, machine)
        except etude.EtudeError:
            continue
        try:
            changed = etude.edit(job, on(job, text), system=machine)
        except (UsageError, CycleError):
            continue
        try:
            assert etude.simulate(changed, machine.for_ranks(changed.world_size)).makespan_ns >= 0
        except DeadlockError:  # threads of a ring that wait for the answer of the next before they answer
            assert text.startswith("rounds k=3 kind=message")
        assert before.makespan_ns >= 0


@pytest.mark.parametrize("text", ALL_ACTIVE)
def test_what_comes_out_is_written_and_read_back(text: str, tmp_path: Path):
    job = random_job(random.Random(11), ranks=3, events=20, broken=False)
    changed = edited_or_none(job, on(job, text))
    if changed is not None:
        (tmp_path / "et").mkdir()
        chakra.write_job(changed, tmp_path / "et")
        assert etude.diff(changed, etude.open(tmp_path / "et")) is None


# -- the value ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ALL_ACTIVE)
def test_an_edit_is_read_and_printed_and_read(text: str):
    one = Edit.parse(text.format(world=4, twice=8))
    assert Edit.parse(str(one)) == one
    assert hash(one) == hash(Edit.parse(str(one)))


def test_edits_are_applied_in_order_and_said():
    job = random_job(random.Random(3), ranks=3, events=20, broken=False).replace(timing=None)
    both = etude.edit(job, "speed by=2", Edit.parse("compress ratio=2"))
    assert etude.diff(both, etude.edit(etude.edit(job, "speed by=2"), ["compress ratio=2"])) is None
    assert both.provenance["edits"] == "speed by=2; compress ratio=2"


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("compres ratio=2", "unknown edit `compres`", "did you mean `compress`?"),
        ("", "an edit is empty", "known: speed"),
        ("speed by=2 rank=3", "unknown key `rank`", "did you mean `ranks`?"),
        ("speed", "`by` is not given", "factor on the speed"),
        ("speed by", "`by` is not KEY=VALUE", "keys: by"),
        ("speed by=2 by=3", "`by` is given twice", ""),
        ("speed by=0", "column 10: `by=0`: 0 is out of range", "above 0"),
        ("speed by=nan", "column 10: `by=nan`: nan is out of range", "above 0"),
        ("speed by=fast", "column 10: `by=fast`: `fast` is not a number", ""),
        ("compress ratio=2 encode=3GBs", "column 25: `encode=3GBs`: unknown unit `GBs`", "50GB/s"),
        ("compress ratio=qk:2", "column 16: `ratio=qk:2`: `qk:2`: unknown class of tensors `qk`", "weights"),
        ("compress ratio=kv:2,kv:3", "column 21: `ratio=kv:2,kv:3`: `kv` is given twice", ""),
        ("rounds k=5000", "column 10: `k=5000`: a node would have 5,000 rounds", "at most 1,024"),
        ("compress ratio=2 where=beside", "column 24: `where=beside`: unknown value `beside`", "auto, around, inside"),
        ("compress ratio=2 kind=dance", "unknown kind `dance`", "collective"),
        (
            "compress ratio=2 collective=dance",
            "column 29: `collective=dance`: unknown collective `dance`",
            "all_reduce",
        ),
        ("compress ratio=2 bytes=5MB..1MB", "column 24: `bytes=5MB..1MB`: `5MB..1MB` is empty", "1MB..64MB"),
        ("speed by=2 ranks=x", "column 18: `ranks=x`: `x` is not a number", "0-3,7"),
        ("speed by='2", "a quotation mark is not closed", ""),
    ],
)
def test_what_is_not_known_is_refused_with_a_way_out(text: str, problem: str, hint: str):
    with pytest.raises(etude.EtudeError) as caught:
        Edit.parse(text)
    assert problem in str(caught.value)
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("compress ratio=1e-12 overhead=1e12", "larger than any trace can hold"),
        ("speed by=1e-12", "larger than any trace can hold"),
        ("merge s=2 kind=message", "messages have none"),
    ],
)
def test_what_no_trace_can_hold_is_refused(text: str, problem: str):
    builders = [TraceBuilder(), TraceBuilder()]
    for b in builders:
        b.add(Kind.COMP, "work", duration_ns=10**12)
        b.add(Kind.COLL, "call", data=[0], collective=Collective.ALL_GATHER, in_bytes=10**9, group="dp")
    builders[0].add(Kind.SEND, "s", dst=1, tag=0, in_bytes=8)
    builders[1].add(Kind.RECV, "r", src=0, tag=0, in_bytes=8)
    with pytest.raises(UsageError, match=problem):
        etude.edit(job_of("pair", builders, {"dp": [0, 1]}), text)


def test_ranks_alone_are_a_class_of_their_own(tmp_path: Path):
    job = etude.extend.fold(symmetric_job(random.Random(4)))
    first = int(job.ranks[0])
    changed = etude.edit(job, f"speed by=2 ranks={first}")
    for rank in job.ranks.tolist():
        before, after = job.trace(rank), changed.trace(rank)
        assert (before.duration_ns != after.duration_ns).any() == (rank == first)
    assert len(changed.traces) == len(job.traces)  # times are values: the program is still shared


def test_steps_are_told():
    job = random_job(random.Random(5), ranks=4, events=40, broken=False)
    found = apply_edits(job, ["compress ratio=2", "speed by=3"])
    first, second = (step.record() for step in found.steps)
    assert first["bytes_before"] == sum(sent(job, rank) for rank in range(4)) > 0
    assert first["bytes_after"] == sum(sent(found.job, rank) for rank in range(4)) < first["bytes_before"]
    assert second["bytes_before"] == second["bytes_after"] == first["bytes_after"]
    assert second["nodes"] == sum(
        len(selected_rows(job, rank, Edit.parse("speed by=3"))) for rank in job.ranks.tolist()
    )


def sent(job: Job, rank: int) -> int:
    trace = job.trace(rank)
    return sum(s for s, k in zip(trace.in_bytes.tolist(), trace.kind.tolist(), strict=True) if k in (6, 8))


def test_the_page_has_every_edit_and_every_parameter():
    page = (Path(__file__).parent.parent.parent / "docs" / "edits.md").read_text()
    for row in edit_table():
        begin = f"| `{row['edit']}` | {row['works on']} |"
        line = next(line for line in page.splitlines() if line.startswith(begin))
        told = f"| {row['works on']} | " + ", ".join(f"`{p}`" for p in row["parameters"].split(", ") if p)
        assert told in line, row["edit"]
    for key in (
        "kind",
        "op",
        "collective",
        "group",
        "phase",
        "module",
        "dtype",
        "bytes",
        "step",
        "micro_batch",
        "ranks",
    ):
        assert f"`{key}`" in page
