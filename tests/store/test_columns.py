"""A job to Parquet and back is the same job; a damaged folder is refused, never misread."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings

import store_jobs as jobs
import strategies
from etude.base.errors import EtudeError, FormatError, UsageError
from etude.model.fold import expand, fold
from etude.model.job import Job, Note, assemble
from etude.model.schema import UNKNOWN
from etude.model.trace import assert_same
from etude.store import chakra, columns, columns_schema, columns_small, columns_write


def round_trip(job: Job, **options: Any) -> Job:
    with tempfile.TemporaryDirectory() as folder:
        columns.write_job(job, folder)
        return columns.read_job(folder, **options)


def assert_comes_back(job: Job, label: str = "") -> Job:
    again = round_trip(job)
    assert jobs.encoded(again) == jobs.encoded(job), label
    for a, b in zip(job.traces, again.traces, strict=True):
        assert_same(a, b)
    assert (again.name, again.world_size, again.notes) == (job.name, job.world_size, job.notes), label
    assert dict(again.provenance) == dict(job.provenance)
    assert again.groups.names == job.groups.names
    assert again.groups.known.tolist() == job.groups.known.tolist()
    for column in ("ranks", "trace_of", "group_of", "group_start", "peer_of", "peer_start", "id_base", "tag_base"):
        assert getattr(again, column).tolist() == getattr(job, column).tolist(), (label, column)
    return again


@pytest.mark.parametrize("part", ["oracle/astra/et", "oracle/stg", "oracle/chakra_official"])
def test_real_jobs_come_back(shared: Path, part: str) -> None:
    count = 0
    for label, job in jobs.real_jobs(shared, part):
        assert_comes_back(job, label)
        assert_comes_back(fold(job), f"{label} folded")
        count += 1
    assert count >= 5


@pytest.mark.parametrize("name", ["gpt8L_r8_dp2tp2pp2", "gpt8L_r16_dp2tp2pp4_mb8", "gpt8L_r64_dp16tp4"])
def test_jobs_of_many_ranks_come_back(shared: Path, tmp_path: Path, name: str) -> None:
    job = jobs.archived_job(shared / "oracle/astra/llm/traces" / f"{name}.tar.xz", tmp_path)
    assert_comes_back(job, name)
    folded = assert_comes_back(fold(job), f"{name} folded")
    assert jobs.encoded(expand(folded)) == jobs.encoded(job)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=strategies.et_files())
def test_any_file_comes_back(data: bytes) -> None:
    decoded = chakra.decode(data)
    assert_comes_back(chakra.join("any", [3], [decoded], {}, source_format="chakra et"))


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(a=strategies.et_files(), b=strategies.et_files())
def test_jobs_in_small_row_groups_come_back(a: bytes, b: bytes) -> None:
    """Traces of several heaps, cut in the middle: row groups of two nodes."""
    job = chakra.join("any", [0, 1, 2], [chakra.decode(d) for d in (a, b, a)], {}, source_format="chakra et")
    saved = columns_write.trace_chunks.__defaults__, columns_small.timing_tables.__defaults__
    columns_write.trace_chunks.__defaults__, columns_small.timing_tables.__defaults__ = (2,), (2,)
    try:
        assert_comes_back(job)
        assert_comes_back(fold(job))
    finally:
        columns_write.trace_chunks.__defaults__, columns_small.timing_tables.__defaults__ = saved


def test_values_and_times_come_back() -> None:
    tiny = jobs.tiny_job()
    for job in (jobs.with_values(tiny), jobs.with_timing(tiny), jobs.with_timing(jobs.with_values(fold(tiny)))):
        again = assert_comes_back(job)
        assert set(again.values) == set(job.values)
        for rank, own in job.values.items():
            assert {c: v.tolist() for c, v in own.items()} == {c: v.tolist() for c, v in again.values[rank].items()}
        if job.timing is not None:
            assert again.timing is not None
            assert (again.timing.origin, again.timing.aligned) == (job.timing.origin, True)
            assert again.timing.clock_offset_ns.tolist() == [0, 1]
            for i in range(len(job)):
                assert [x.tolist() for x in again.timing.block(i)] == [x.tolist() for x in job.timing.block(i)]


def test_notes_come_back_with_what_they_are_about() -> None:
    notes = (Note(0, "lost"), Note(1, "cut", at_edge=True))
    job = jobs.tiny_job().replace(notes=notes)
    assert assert_comes_back(job).notes == notes
    assert round_trip(job, ranks=[1]).notes == notes[1:]


def test_ranks_can_be_chosen() -> None:
    job = jobs.with_timing(jobs.with_values(jobs.tiny_job()))
    one = round_trip(job, ranks=[1])
    assert (one.ranks.tolist(), len(one.traces), one.world_size) == ([1], 1, 2)
    assert jobs.encoded(one) == jobs.encoded(job)[1:]
    assert one.values == {}
    assert round_trip(job, ranks=[0]).values[0]["duration_ns"].tolist() == [0, 1000, 2000]
    with pytest.raises(UsageError, match="rank 5 is not in the job"):
        round_trip(job, ranks=[1, 5])


def test_a_job_of_nothing_comes_back() -> None:
    assert_comes_back(assemble("nothing", []))


def test_the_same_job_gives_the_same_bytes(tmp_path: Path) -> None:
    job = jobs.with_timing(jobs.with_values(jobs.tiny_job()))
    for name in "ab":
        (tmp_path / name).mkdir()
        columns.write_job(job, tmp_path / name)
    for path in sorted((tmp_path / "a").iterdir()):
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
        assert b"/" + tmp_path.name.encode() not in path.read_bytes()


def test_only_columns_that_hold_something_are_written(tmp_path: Path) -> None:
    columns.write_job(jobs.tiny_job(), tmp_path)
    names = set(pq.read_schema(tmp_path / "nodes.parquet").names)
    assert {"flops", "module", "tag"} <= names
    assert not {"rf_id", "phase", "in_shapes", "extra", "thread"} & names
    table = pq.read_table(tmp_path / "nodes.parquet")
    assert table.column("kind").to_pylist()[:3] == ["COMP_NODE", "COMM_SEND_NODE", "COMM_COLL_NODE"]
    assert table.column("duration_ns").to_pylist()[:3] == [1500, None, None]


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(UsageError, match="not an empty folder"):
        columns.write_job(jobs.tiny_job(), tmp_path)


# ---- damage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "job"
    path.mkdir()
    columns.write_job(jobs.with_timing(jobs.with_values(jobs.tiny_job())), path)
    return path


def change_manifest(folder: Path, **changes: Any) -> None:
    path = folder / "manifest.json"
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | changes))


def change_table(folder: Path, file: str, column: str, values: Any) -> None:
    """Replaces a column and writes the file as Etude would."""
    path = folder / f"{file}.parquet"
    table = pq.read_table(path)
    at = table.column_names.index(column)
    new = values(table.column(column)) if callable(values) else values
    out = table.set_column(at, column, new if isinstance(new, pa.Array | pa.ChunkedArray) else pa.array(new))
    pq.write_table(out, path, store_schema=False)


@pytest.mark.parametrize("name", ["nodes", "deps", "attrs", "ranks", "traces", "layouts", "groups", "values", "timing"])
def test_a_missing_or_truncated_file_is_refused(folder: Path, name: str) -> None:
    path = folder / f"{name}.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FormatError, match=name):
        columns.read_job(folder)
    path.unlink()
    with pytest.raises(FormatError, match=f"{name}.parquet: is missing"):
        columns.read_job(folder)


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b"{", b"\xff\xfe", b'{"format": "etude job"}', b"[" * 100_000])
def test_a_manifest_of_garbage_is_refused(folder: Path, text: bytes) -> None:
    (folder / "manifest.json").write_bytes(text)
    with pytest.raises(FormatError, match="manifest"):
        columns.read_job(folder)


def test_a_newer_version_is_refused(folder: Path) -> None:
    change_manifest(folder, schema_version=99, something_new=1)
    with pytest.raises(FormatError, match=r"schema version 99; this Etude reads up to 1\nhint: update Etude"):
        columns.read_job(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"traces": 1}, {"traces": 3}, {"ranks": 1}, {"layouts": [0]}, {"layouts": []}, {"chunks": []},
        {"world_size": -1}, {"layouts": [1 << 41]},
        {"timing": {"origin": "guessed", "aligned": True, "partial": False}},
        {"chunks": [{"first": 0, "last": 1, "nodes": 5, "data": 4, "ctrl": 4, "attrs": 6}]},
        {"chunks": [{"first": 0, "last": 9, "nodes": 6, "data": 4, "ctrl": 4, "attrs": 6}]},
        {"chunks": [{"first": 0, "last": 1, "nodes": 6, "data": 5, "ctrl": 3, "attrs": 6}]},
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_fit_is_refused(folder: Path, changes: dict[str, Any]) -> None:
    change_manifest(folder, **changes)
    with pytest.raises(FormatError):
        columns.read_job(folder)


def at(position: int, value: Any) -> Any:
    """A column with one value replaced."""

    def change(column: Any) -> Any:
        values = column.to_pylist()
        values[position] = value
        return pa.array(values, column.type)

    return change


@pytest.mark.parametrize(
    ("file", "column", "values"),
    [
        ("nodes", "layout", at(0, 99)), ("nodes", "layout", at(0, -1)), ("nodes", "lane", at(0, 99)),
        ("nodes", "lane", at(0, -5)), ("nodes", "group", at(2, 7)), ("nodes", "src", at(1, 2)),
        ("nodes", "dst", at(1, -7)), ("nodes", "kind", at(0, "NO_NODE")), ("nodes", "node", at(0, 1)),
        ("nodes", "trace", at(0, 1)), ("nodes", "source_id", at(0, None)), ("nodes", "layout", at(1, 0)),
        ("deps", "on", at(0, 3)), ("deps", "on", at(0, -1)), ("deps", "node", at(0, 3)), ("deps", "node", at(0, -1)),
        ("deps", "trace", at(0, 2)), ("deps", "kind", at(0, "ctrl")), ("deps", "why", at(0, "whim")),
        ("deps", "on", at(0, None)), ("deps", "node", at(0, 2)),
        ("attrs", "bits", at(0, None)), ("attrs", "kind", at(0, "int64")), ("attrs", "node", at(0, 1)),
        ("attrs", "payload", at(2, None)), ("attrs", "payload", at(2, b"\x0a\x7f")), ("attrs", "payload", at(0, b"x")),
        ("ranks", "trace", at(0, 2)), ("ranks", "trace", at(0, -1)), ("ranks", "rank", at(0, 1)),
        ("ranks", "rank", at(0, -1)), ("ranks", "groups", at(0, [])), ("ranks", "groups", at(0, [9])),
        ("ranks", "peers", at(0, [1])), ("ranks", "block", at(0, 1)), ("ranks", "block", at(0, None)),
        ("ranks", "metadata", at(0, None)), ("ranks", "own", at(0, ["name"])), ("ranks", "own", at(0, [])),
        ("ranks", "groups", at(0, [None])),
        ("traces", "nodes", at(0, 4)), ("traces", "nodes", at(0, -1)), ("traces", "nodes", at(0, 1 << 62)),
        ("traces", "layouts", at(0, 3)), ("traces", "lane_id", at(0, [])), ("traces", "trace", at(0, 1)),
        ("traces", "data_deps", at(0, 1)), ("traces", "attrs", at(0, 4)), ("traces", "group_slots", at(0, [])),
        ("traces", "peer_slots", at(0, 0)),
        ("layouts", "layout", at(0, 9)), ("layouts", "kind", at(0, "int65")), ("layouts", "position", at(0, 1)),
        ("layouts", "column", at(0, "name")), ("layouts", "column", at(0, "phase")),
        ("layouts", "kind", at(0, "string")),
        ("layouts", "name", at(0, None)), ("layouts", "set", at(0, 7)),
        ("groups", "name", at(0, None)), ("groups", "group", at(0, 1)),
        ("ranks", "metadata", at(0, b"\xff\xff")), ("layouts", "unknown", at(0, b"\xff")),
        ("ranks", "tag_base", at(0, 2**63 - 1)),
        ("values", "rank", at(0, 1)), ("values", "node", at(0, 1)), ("timing", "block", at(0, 1)),
        ("timing", "node", at(0, 2)),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused(folder: Path, file: str, column: str, values: Any) -> None:
    change_table(folder, file, column, values)
    with pytest.raises(FormatError):
        columns.read_job(folder)


@pytest.mark.parametrize("file", ["nodes", "deps", "attrs", "ranks", "traces", "layouts", "groups", "values", "timing"])
def test_wrong_types_and_missing_columns_are_refused(folder: Path, file: str) -> None:
    path = folder / f"{file}.parquet"
    table = pq.read_table(path)
    for name in table.column_names:
        texts = table.set_column(table.column_names.index(name), name, pa.array([1.5] * len(table)))
        if table.schema.field(name).type == pa.float64():
            continue  # derived, for readers of SQL
        pq.write_table(texts, path, store_schema=False)
        with pytest.raises(FormatError, match=f"column `{name}` is"):
            columns.read_job(folder)
        pq.write_table(table.drop_columns([name]), path, store_schema=False)
        if name not in columns_schema.OPTIONAL.get(file, ()):
            with pytest.raises(FormatError, match=f"column `{name}` is missing"):
                columns.read_job(folder)


def test_text_that_is_not_utf8_is_refused(folder: Path) -> None:
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    names = pa.DictionaryArray.from_arrays(pa.array([0] * 6, pa.int32()), bad)
    change_table(folder, "nodes", "name", names)
    with pytest.raises(FormatError, match="name"):
        columns.read_job(folder)


def test_flipped_bits_are_refused_or_harmless(folder: Path, tmp_path: Path) -> None:
    """Pages have checksums; a footer that still parses must fit the other files."""
    whole = jobs.encoded(columns.read_job(folder))
    draw = random.Random(1)
    refused = 0
    for _ in range(250):
        copy = tmp_path / "copy"
        shutil.copytree(folder, copy)
        path = draw.choice(sorted(copy.iterdir()))
        raw = bytearray(path.read_bytes())
        raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
        path.write_bytes(raw)
        try:
            again = columns.read_job(copy)
        except EtudeError:
            refused += 1
        else:
            if path.suffix == ".parquet":  # a manifest may be renamed and still be one
                assert jobs.encoded(again) == whole
        shutil.rmtree(copy)
    assert refused > 100


def test_unknown_times_stay_unknown() -> None:
    job = jobs.tiny_job()
    assert int(round_trip(job).traces[0].duration_ns[1]) == UNKNOWN


@pytest.mark.parametrize(
    ("file", "column", "values"),
    [("nodes", "parent", at(1, 10**6)), ("nodes", "parent", at(1, -7)), ("traces", "lane_kind", at(0, [200]))],
)
def test_callers_and_lanes_out_of_range_are_refused(tmp_path: Path, file: str, column: str, values: Any) -> None:
    from etude.model.build import TraceBuilder, job_of
    from etude.model.schema import Kind

    b = TraceBuilder()
    b.add(Kind.COMP, "module", cpu=1, thread=3)
    b.add(Kind.COMP, "aten::mm", cpu=1, thread=3, parent=0)
    folder = tmp_path / "job"
    folder.mkdir()
    columns.write_job(job_of("t", [b]), folder)
    assert columns.read_job(folder).traces[0].parent.tolist() == [-1, 0]
    change_table(folder, file, column, values)
    with pytest.raises(FormatError):
        columns.read_job(folder)
