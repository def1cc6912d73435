"""A copy without words: no string of the original is in what is written, and it simulates alike."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import etude
import strategies
from etude.base.errors import EtudeError, TraceError, UsageError
from etude.make.transform.anonymising import AnonymiseOptions, anonymise, kept
from etude.model import text
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job, Note, assemble
from etude.model.schema import NODE, OWNED, UNKNOWN, Collective, Kind, ValueKind
from etude.model.timing import measured
from etude.store import chakra
from etude.surface.cli import main
from toy_systems import one_level

SCHEMA_WORDS = {c.attr.encode() for c in OWNED} | {b"involved_dim", b"1.0.0"}
TOKEN = re.compile(r"(op|phase|module)\d+")


def words_of(job: Job) -> set[bytes]:
    """Every string of a job that somebody might want to hide: text, attribute names and texts, metadata, groups."""
    found: set[bytes] = {name.encode() for name in job.groups.names} | set(job.metadata) | {job.name.encode()}
    for trace in job.traces:
        for _, unique in trace.intern().values():
            found |= {text.slice_bytes(trace.heap, int(o)) for o in unique}
        found |= {
            part for layout in trace.layouts for a in layout for part in (a.name.encode(), a.doc.encode(), a.unknown)
        }
        found |= {text.slice_bytes(trace.heap, int(o)) for o in trace.extra}
    pieces = {p for word in found for p in re.findall(rb"[\x20-\x7e]{5,}", word)}
    return {w for w in found | pieces if len(w) > 4} - SCHEMA_WORDS


def written(job: Job, folder: Path) -> bytes:
    folder.mkdir()
    chakra.write_job(job, folder)
    return b"".join(path.name.encode() + path.read_bytes() for path in sorted(folder.iterdir()))


def secret_job() -> Job:
    builders = []
    for _ in range(2):
        b = TraceBuilder()
        a = b.add(Kind.COMP, "secret_gemm", duration_ns=1000, cpu=1, thread=771234, module="model.secret.layer",
                  phase="forward-secret", in_shapes="[[17, 23]]", in_types="['Tensor(secret)']", in_values="[41]",
                  rf_id=5, correlation=99, flops=10, tensor_bytes=20,
                  attrs={"stack_secret": (ValueKind.STRING, "train_secret.py:12"),
                         "involved_dim": (ValueKind.BOOL_LIST, [True, False])})  # fmt: skip
        c = b.add(Kind.COLL, "secret_sum", data=[a], collective=Collective.ALL_REDUCE, in_bytes=64,
                  group="secret_group", step=3)  # fmt: skip
        b.add(Kind.COMP, "secret_gemm", ctrl=[c], duration_ns=7, parent=0, cpu=1, thread=771234)
        builders.append(b)
    job = job_of("secret_job", builders, {"secret_group": [1, 0]})
    starts = [np.array([10**18 + rank, UNKNOWN, 10**18 + 5000], np.int64) for rank in range(2)]
    return job.replace(
        timing=measured(starts, [t.duration_ns for t in job.traces]),
        metadata=(b"\x0a\x0dsecret-9.9.9x",),
        notes=(Note(0, "secret"),),
        provenance={"host": "secret"},
    )


def test_the_words_go_and_the_rest_stays(tmp_path: Path):
    job = secret_job()
    copy, hidden = anonymise(job)
    blob = written(copy, tmp_path / "out")
    assert b"secret" not in blob
    assert b"771234" not in blob
    trace = copy.traces[0]
    assert [trace.text("name", i) for i in range(3)] == ["op0", "op1", "op0"]
    assert trace.text("module", 0) == "module0"
    assert trace.thread.tolist() == [1, UNKNOWN, 1]
    assert (trace.rf_id == UNKNOWN).all() and (trace.correlation == UNKNOWN).all()
    assert trace.in_shapes.tolist() == [-1] * 3
    assert copy.groups.names == ("1",) and copy.groups.ranks(0).tolist() == [1, 0]  # type: ignore[union-attr]
    kept = "source_id duration_ns cpu collective in_bytes flops tensor_bytes group parent data ctrl data_start"
    for column in kept.split():
        assert np.array_equal(getattr(trace, column), getattr(job.traces[0], column)), column
    assert trace.step.tolist() == [UNKNOWN, 0, UNKNOWN]
    assert copy.timing is not None
    assert copy.timing.start_ns[1].tolist() == [1, UNKNOWN, 5000]
    assert [(a.name, v) for a, v in trace.attributes(0) if not a.column] == [("involved_dim", [True, False])]
    assert hidden.tokens["name"] == {"op0": "secret_gemm", "op1": "secret_sum"}
    report = {row["what"]: row["count"] for row in hidden.rows()}
    assert report["attributes"] == 2  # the stack, on both ranks; the dimensions stay
    assert report["shapes, types, strides"] == 4
    assert report["threads"] == 1
    back = etude.open(tmp_path / "out")
    assert etude.diff(back, copy) is None


def test_what_can_be_kept_is_kept_if_asked():
    job = secret_job()
    copy, _ = anonymise(job, AnonymiseOptions(keep_shapes=True, keep_times=False))
    assert copy.traces[0].text("in_shapes", 0) == "[[17, 23]]"
    assert copy.traces[0].text("in_values", 0) == ""
    assert copy.timing is None


def test_work_is_filled_in_from_shapes():
    b = TraceBuilder()
    b.add(Kind.COMP, "aten::mm", in_shapes="[[2, 3], [3, 5]]", in_types="['Tensor(float)', 'Tensor(float)']", cpu=0)
    job = job_of("j", [b])
    assert anonymise(job)[0].traces[0].flops.tolist() == [UNKNOWN]
    assert anonymise(job, AnonymiseOptions(work=True))[0].traces[0].flops.tolist() == [2 * 2 * 3 * 5]


@pytest.mark.parametrize("per_octave", [1, 8, 64])
def test_sizes_and_times_can_be_rounded(per_octave: int):
    b = TraceBuilder()
    a = b.add(Kind.COMP, "gemm", duration_ns=123_456, flops=1 << 40, tensor_bytes=3 << 20, cpu=0)
    b.add(Kind.COLL, "gather", data=[a], collective=Collective.ALL_GATHER, in_bytes=1 << 20, out_bytes=4 << 20)
    job = job_of("j", [b]).replace(values={0: {"duration_ns": np.array([654_321, 0], np.int64)}})
    copy, hidden = anonymise(job, AnonymiseOptions(per_octave=per_octave))
    plain, trace, mine = job.traces[0], copy.traces[0], copy.trace(0)
    assert mine.duration_ns[0] == pytest.approx(654_321, rel=0.5 / per_octave)
    for column in ("duration_ns", "flops", "tensor_bytes", "in_bytes", "out_bytes"):
        exact, rounded = getattr(plain, column), getattr(trace, column)
        known = exact > 0
        assert np.array_equal(exact[~known], rounded[~known])
        assert not np.intersect1d(exact[known], rounded[known]).size
        assert rounded[known] == pytest.approx(exact[known], rel=0.5 / per_octave)
    assert trace.out_bytes[1] == 4 * trace.in_bytes[1]  # as the ranks of the group say
    assert {row["what"]: row["count"] for row in hidden.rows()}["sizes and times"] == 6
    assert kept(AnonymiseOptions(per_octave=8))[1]["became"] == "kept, 8 values per octave"


def test_a_rounded_copy_has_no_start_times_that_would_tell():
    assert anonymise(secret_job(), AnonymiseOptions(per_octave=8))[0].timing is None
    with pytest.raises(UsageError, match="per octave"):
        AnonymiseOptions(per_octave=5000)


def test_ranks_that_shared_a_trace_share_its_copy():
    job = etude.extend.fold(secret_job().replace(timing=None))
    copy, _ = anonymise(job)
    assert len(copy.traces) == len(job.traces) == 1


REAL = [
    "stg/gpt_dp2_tp2_pp2_mb2",
    "stg/moe_dp2_ep4",
    "chakra_official/h200_nccl/coll",
    "chakra_official/host_only/1.0.3.et.gz",
]


@pytest.mark.parametrize("place", REAL)
def test_no_string_of_a_real_job_survives(place: str, shared: Path, tmp_path: Path):
    job = etude.open(shared / "oracle" / place)
    copy, _ = anonymise(job)
    blob = written(copy, tmp_path / "out")
    left = sorted(w for w in words_of(job) if w in blob)
    assert left == []
    for trace in copy.traces:
        for key, (_, unique) in trace.intern().items():
            for word in text.strings(trace.heap, unique):
                assert TOKEN.fullmatch(word), (key, word)


@pytest.mark.parametrize("place", ["stg/gpt_dp2_tp2_pp2_mb2", "stg/gpt_pp4_mb8"])
def test_a_real_job_simulates_alike(place: str, shared: Path):
    job = etude.open(shared / "oracle" / place)
    copy, _ = anonymise(job)
    system = one_level("switch", 8)
    ours, theirs = etude.simulate(copy, system), etude.simulate(job, system)
    assert ours.makespan_ns == theirs.makespan_ns > 0
    for index in range(len(job)):
        for a, b in zip(ours.timing.block(index), theirs.timing.block(index), strict=True):
            assert np.array_equal(a, b)


@settings(max_examples=8)
@given(strategies.et_files())
def test_any_file_can_be_hidden_and_read_back(data: bytes):
    try:
        decoded = chakra.decode(data, "x.et")
    except EtudeError:
        return
    job = assemble("x", chakra._parts([0], [decoded], {}, [chakra.process_groups(decoded.trace)])[0])
    copy, _ = anonymise(job)
    try:
        raw = bytes(chakra.encode(chakra.for_rank(copy, 0)[0]))
    except TraceError as problem:  # what cannot be written could not be before either
        assert "negative time" in str(problem)  # noqa: PT017
        return
    back = chakra.decode(raw, "y.et")
    for column in NODE:
        if column.name not in ("layout", "lane", "group", "src", "dst") and not column.is_text:
            assert np.array_equal(getattr(back.trace, column.name), getattr(copy.traces[0], column.name)), column.name
    assert len(back.trace.extra) == 0
    assert {a.name for layout in back.trace.layouts for a in layout} <= {w.decode() for w in SCHEMA_WORDS}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "in").mkdir()
    chakra.write_job(secret_job().replace(timing=None), tmp_path / "in")
    out, key = tmp_path / "out", tmp_path / "key.json"
    args = ["anonymise", str(tmp_path / "in"), "-o", str(out), "--to", "et", "--key", str(key), "--json"]
    assert main(args) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"what": "name (distinct words)", "became": "numbered tokens", "count": 2} in rows
    assert json.loads(key.read_text())["group"] == {"1": "secret_group"}
    assert sorted(p.name for p in out.iterdir()) == ["anonymous.0.et", "anonymous.1.et", "anonymous.json"]
    assert not any(b"secret" in p.read_bytes() for p in out.iterdir())
