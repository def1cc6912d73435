"""Jobs as folders of `.et` files."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

import chakra_pb as pb
import etude
from etude.base.errors import EtudeError, FormatError, UsageError
from etude.kernels.varint import encode_varint
from etude.model.build import TraceBuilder, job_of
from etude.model.diff import diff
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.store import chakra, compressed

GROUPS = {"1": [0, 1], "2": [2, 3]}


def four() -> Job:
    builders = []
    for rank in range(4):
        b = TraceBuilder()
        b.add(Kind.COMP, "gemm", duration_ns=1000)
        b.add(Kind.COLL, "sum", data=[0], collective=Collective.ALL_REDUCE, in_bytes=8, group=str(1 + rank // 2))
        builders.append(b)
    return job_of("w", builders, GROUPS)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    chakra.write_job(four(), folder)
    return folder


def test_one_file_a_rank_and_the_groups_beside(run: Path) -> None:
    assert sorted(p.name for p in run.iterdir()) == ["w.0.et", "w.1.et", "w.2.et", "w.3.et", "w.json"]
    assert json.loads((run / "w.json").read_text()) == GROUPS
    _, nodes = pb.read_messages(run / "w.3.et")
    assert [(n.id, n.name, n.type, list(n.data_deps), n.duration_micros) for n in nodes] == [
        (0, "gemm", 4, [], 1),
        (1, "sum", 7, [0], 0),
    ]
    assert {a.name: (a.int64_val, a.string_val) for a in nodes[1].attr} == {
        "comm_type": (0, ""), "comm_size": (8, ""), "pg_name": (0, "2"),
    }  # fmt: skip


def test_read_as_folder_prefix_or_file(run: Path) -> None:
    assert diff(chakra.read_job(run), four()) is None
    assert diff(chakra.read_job(run / "w"), four()) is None
    one = chakra.read_job(run / "w.2.et")
    assert one.ranks.tolist() == [2]
    assert one.world_size == 4  # the group file knows of rank 3
    assert one.groups.ranks(int(one.group_slots(2)[0])).tolist() == [2, 3]


@pytest.mark.parametrize("suffix", [".et.gz", ".et.zst"])
def test_packed_files(tmp_path: Path, suffix: str) -> None:
    chakra.write_job(four(), tmp_path, suffix=suffix)
    assert (tmp_path / f"w.0{suffix}").read_bytes()[:2] in (b"\x1f\x8b", b"\x28\xb5")
    assert diff(chakra.read_job(tmp_path), four()) is None


def test_many_workers_read_the_same(shared: Path) -> None:
    place = shared / "oracle" / "stg" / "gpt_dp2_tp2_pp2_mb2"
    seen: list[int] = []
    assert diff(chakra.read_job(place, workers=4, advance=seen.append), chakra.read_job(place)) is None
    assert sum(seen) == 8


def test_exact_times_travel_beside_the_micros(tmp_path: Path) -> None:
    from etude.model.timing import measured

    b = TraceBuilder()
    for duration_ns in (1499, 1500, 0, 2000, UNKNOWN):
        b.add(Kind.COMP, duration_ns=duration_ns)
    job = job_of("t", [b])
    starts = np.array([10, 2500, 3000, 0, UNKNOWN])
    job = job.replace(timing=measured([starts], [job.traces[0].duration_ns]))
    chakra.write_job(job, tmp_path)
    _, nodes = pb.read_messages(tmp_path / "t.0.et")
    assert [n.duration_micros for n in nodes] == [1, 2, 0, 2, 0]
    assert [n.start_time_micros for n in nodes] == [0, 3, 3, 0, 0]
    attrs = [{a.name: a.int64_val for a in n.attr} for n in nodes]
    assert attrs == [
        {"duration_ns": 1499, "start_ns": 10}, {"duration_ns": 1500, "start_ns": 2500}, {"duration_ns": 0},
        {"start_ns": 0}, {},
    ]  # fmt: skip
    again = chakra.read_job(tmp_path)
    assert diff(again, job) is None


def test_micros_win_over_nanoseconds_that_disagree(tmp_path: Path) -> None:
    node = pb.Node(name="n", type=4, duration_micros=7)
    node.attr.add(name="duration_ns", int64_val=9000)
    raw = pb.write_messages(pb.GlobalMetadata(version="1"), [node])
    (tmp_path / "x.0.et").write_bytes(raw)
    job = chakra.read_job(tmp_path)
    assert job.traces[0].duration_ns.tolist() == [7000]
    assert "disagree" in job.notes[0].what
    assert bytes(chakra.encode(chakra.for_rank(job, 0)[0])) == raw


def test_groups_that_pytorch_recorded(shared: Path) -> None:
    job = chakra.read_job(shared / "oracle" / "chakra_official" / "h200_nccl" / "fsdp")
    assert job.world_size == 4
    assert {n: job.groups.ranks(i).tolist() for i, n in enumerate(job.groups.names)} == {"0": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda f: None, "no `name.{rank}.et` files"),
        (lambda f: (f / "a.0.et").touch() or (f / "b.0.et").touch(), "several jobs in one folder: `a` .1 ranks., `b`"),
        (lambda f: (f / "a.0.et").touch() or (f / "a.0.et.gz").touch(), "rank 0 appears twice"),
        (lambda f: (f / "a.0.et").touch(), r"a\.0\.et: byte 0: the file is empty"),
        (lambda f: (f / "a.0.et").write_bytes(b"\x02\x0a\x00\x7f"), r"a\.0\.et: byte 3: message 1 claims to run past"),
        (lambda f: (f / "a.0.et").write_bytes(gzip.compress(b"\x02\x0a\x00")[:-9]), "gzip"),
    ],
)
def test_bad_folders(tmp_path: Path, make, problem: str) -> None:
    make(tmp_path)
    with pytest.raises(EtudeError, match=problem):
        chakra.read_job(tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", '{"1": 3}', '{"1": [0, -1]}', '{"1": ["0"]}'])
def test_bad_group_files(run: Path, content: str) -> None:
    (run / "w.json").write_text(content)
    with pytest.raises(FormatError, match=r"w\.json: "):
        chakra.read_job(run)


def test_a_limit_on_size(run: Path) -> None:
    with pytest.raises(UsageError, match="more than the limit of 10"):
        chakra.read_job(run, max_bytes=10)


def test_a_gzip_bomb_is_refused_without_a_limit(tmp_path: Path) -> None:
    import zlib

    stream = zlib.compressobj(9, wbits=31)
    packed = b"".join(stream.compress(bytes(1 << 20)) for _ in range(400)) + stream.flush()
    (tmp_path / "x.0.et.gz").write_bytes(packed)
    with pytest.raises(FormatError, match="unpacks to more than 200 times its size"):
        chakra.read_job(tmp_path)


@pytest.mark.parametrize("ending", ["json.zst", "json.gz", "et.zst"])
def test_a_small_file_that_unpacks_to_tens_of_megabytes_is_refused(tmp_path: Path, ending: str) -> None:
    """32 MiB from some kilobytes: small for a bomb, and minutes of work as nodes."""
    import gzip

    import pyarrow as pa

    text = b'{"nodes":[' + b"{}," * (11 << 20) + b"{}]}" if "json" in ending else b"\x00" + b"\x02\x08\x01" * (11 << 20)
    packed = gzip.compress(text) if ending.endswith("gz") else pa.compress(text, "zstd", asbytes=True)
    path = tmp_path / f"w.0.{ending}"
    path.write_bytes(packed)
    with pytest.raises(FormatError, match="unpacks to more than 200 times its size"):
        etude.open(path)
    assert len(compressed.head(path, 1 << 16)) == 1 << 16


def test_callers_and_strides_travel_and_follow_the_ids(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.add(Kind.COMP, "module", source_id=10)
    b.add(Kind.COMP, "aten::mm", source_id=30, parent=0, in_strides="[[1, 2]]")
    job = job_of("t", [b])
    chakra.write_job(job, tmp_path)
    _, nodes = pb.read_messages(tmp_path / "t.0.et")
    assert {a.name: a.uint64_val for a in nodes[1].attr} == {"parent": 10, "in_strides": 0}
    again = chakra.read_job(tmp_path)
    assert again.traces[0].parent.tolist() == [-1, 0]
    assert diff(again, job) is None


def test_a_caller_that_is_not_in_the_file_is_kept_as_it_is(tmp_path: Path) -> None:
    node = pb.Node(id=1, name="n", type=4)
    node.attr.add(name="parent", int64_val=77)
    raw = pb.write_messages(pb.GlobalMetadata(version="1"), [node])
    (tmp_path / "x.0.et").write_bytes(raw)
    job = chakra.read_job(tmp_path)
    assert job.traces[0].parent.tolist() == [-1]
    assert bytes(chakra.encode(chakra.for_rank(job, 0)[0])) == raw


def test_clearing_a_column_clears_its_attribute() -> None:
    b = TraceBuilder()
    b.add(Kind.COLL, "sum", phase="forward", group="1", in_bytes=8, collective=Collective.ALL_REDUCE, duration_ns=7)
    trace = b.build()
    bare = trace.replace(
        phase=np.array([-1]), group=np.array([-1], np.int32), duration_ns=np.array([UNKNOWN]), tag=np.array([3])
    )
    start_ns = np.array([UNKNOWN])
    raw = chakra.encode(chakra.Decoded(bare, b"", ("1",), np.zeros(0, np.int64), start_ns, ()))
    _, nodes = pb.read_messages(bytes(raw))
    assert [a.name for a in nodes[0].attr] == ["comm_type", "comm_size", "comm_tag"]
    assert nodes[0].duration_micros == 0


# ---- hostile input


def test_a_node_of_very_many_attributes_is_read_in_linear_memory(tmp_path: Path) -> None:
    node = pb.Node(id=1)
    for i in range(20_000):
        node.attr.add(name=f"a{i}", int64_val=i)
    raw = pb.write_messages(pb.GlobalMetadata(version="1"), [node])
    (tmp_path / "x.0.et").write_bytes(raw)
    job = chakra.read_job(tmp_path)
    assert len(job.traces[0].layouts[0]) == 20_000
    assert bytes(chakra.encode(chakra.for_rank(job, 0)[0])) == raw


def test_very_many_unknown_fields_are_kept(tmp_path: Path) -> None:
    body = b"\x08\x05" + b"\xa0\x06\x01" * 100_000  # field 100, again and again
    raw = b"\x02\x0a\x00" + encode_varint(len(body)) + body
    (tmp_path / "x.0.et").write_bytes(raw)
    job = chakra.read_job(tmp_path)
    assert bytes(chakra.encode(chakra.for_rank(job, 0)[0])) == raw


def test_ids_that_were_chosen_to_collide(tmp_path: Path) -> None:
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)
    ids = [j * inverse % 2**64 for j in range(1, 20_001)]
    nodes = [pb.Node(id=i, data_deps=[ids[0]]) for i in ids]
    (tmp_path / "x.0.et").write_bytes(pb.write_messages(pb.GlobalMetadata(version="1"), nodes))
    trace = chakra.read_job(tmp_path).traces[0]
    assert trace.data.tolist() == [0] * 20_000


@pytest.mark.parametrize("name", ["x.99999999999.et", "y.20241115.et"])
def test_a_number_that_is_no_rank(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x02\x0a\x00")
    with pytest.raises(UsageError, match="is not a rank"):
        chakra.read_job(tmp_path)


@pytest.mark.parametrize(
    "groups", ['{"pg_name": "1", "ranks": [99999999999999999999]}', '{"pg_name": "1", "ranks": [-1]}', "[" * 100_000]
)
def test_recorded_groups_that_make_no_sense_are_unknown(tmp_path: Path, groups: str) -> None:
    node = pb.Node(id=1, name="## process_group:init ##", type=1)
    node.inputs.values = f"['[{groups}]']"
    coll = pb.Node(id=2, name="sum", type=7)
    coll.attr.add(name="pg_name", string_val="1")
    (tmp_path / "x.0.et").write_bytes(pb.write_messages(pb.GlobalMetadata(version="1"), [node, coll]))
    job = chakra.read_job(tmp_path)
    assert job.groups.ranks(int(job.group_slots(0)[0])) is None
    assert job.world_size == 1


def test_a_json_twin_beside_is_not_asked_for_groups(run: Path) -> None:
    (run / "w.json").write_text('{"metadata": {}, "nodes": []}')
    assert chakra.read_job(run).groups.ranks(0) is None


def test_a_note_names_the_id_and_not_the_row(tmp_path: Path) -> None:
    node = pb.Node(id=5000, type=4, duration_micros=7)
    node.attr.add(name="duration_ns", int64_val=9000)
    (tmp_path / "x.0.et").write_bytes(pb.write_messages(pb.GlobalMetadata(version="1"), [pb.Node(id=1), node]))
    assert "the first at node 5000" in chakra.read_job(tmp_path).notes[0].what
