from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import strategies as s
from etude.base.errors import CycleError, DanglingDependency, FormatError, UsageError
from etude.model.feeder.feed import Feeder, feeder
from etude.model.schema import Collective, Kind
from etude.store import et_stream
from etude.store.chakra import decode, read_job
from etude.store.et_stream import FileSource, open_feeder


def write(path: Path, *nodes: bytes, about: bytes = b"\x0a\x011") -> Path:
    path.write_bytes(s.stream([about, *nodes]))
    return path


def source(feed: Feeder) -> FileSource:
    assert isinstance(feed._source, FileSource)
    return feed._source


VIEWED = ("source_id", "kind", "name", "duration_ns", "in_bytes", "collective", "group", "group_name", "src", "dst",
          "tag", "cpu", "stream", "lane", "start_ns", "in_values", "data_ids", "ctrl_ids", "attrs")  # fmt: skip


def assert_same_feed(files: Feeder, memory: Feeder) -> None:
    """Same ranks, same order, same nodes."""
    assert files.ranks.tolist() == memory.ranks.tolist()
    for rank in files.ranks.tolist():
        order = memory.drain(rank)
        for node in order.tolist():
            assert files.next(rank) == node
            files.complete(rank, node)
        assert files.done(rank)
        for node in order[:: max(1, len(order) // 50)].tolist():
            for column in VIEWED:
                a, b = getattr(files.node(rank, node), column), getattr(memory.node(rank, node), column)
                assert a == b, (rank, node, column)
        for column in ("duration_ns", "in_bytes", "kind", "source_id", "tag"):
            assert files.values(rank, column, order).tolist() == memory.values(rank, column, order).tolist()


# -- small files


def test_nodes_come_in_order_and_are_read_from_the_file(tmp_path: Path):
    size = s.attribute("comm_size", "int64", 96)
    kind = s.attribute("comm_type", "int64", 2)
    write(
        tmp_path / "w.0.et",
        s.node(7, "late", 4, data=[9]),
        s.node(8, "first", 4, micros=(0, 3)),
        s.node(9, "gather", 7, ctrl=[8], attributes=[size, kind]),
    )
    with open_feeder(tmp_path) as feed:
        assert feed.next(0) == 1
        assert (feed.node(0, 1).name, feed.node(0, 1).duration_ns) == ("first", 3000)
        feed.complete(0, 1)
        assert feed.next(0) == 2
        gather = feed.node(0, 2)
        assert (gather.collective, gather.in_bytes, gather.ctrl_ids) == (Collective.ALL_GATHER, 96, [8])
        feed.complete(0, 2)
        assert feed.next(0) == 0
        assert source(feed).open_files == 1
    assert source(feed).open_files == 0
    assert open_feeder(tmp_path, ctrl=False).ready(0).tolist() == [1, 2]
    assert open_feeder(tmp_path, data=False).ready(0).tolist() == [0, 1]


def test_a_missing_dependency_is_an_error_with_names(tmp_path: Path):
    path = write(tmp_path / "w.3.et", s.node(1, type=4), s.node(5, type=4, data=[1], ctrl=[44, 0]))
    with pytest.raises(DanglingDependency) as problem:
        open_feeder(path)
    assert str(problem.value).startswith(
        "rank 3: node 5 waits for node 44, which is not in the trace (2 such dependencies in total)\n"
    )
    assert "`ctrl=False`" in problem.value.hint
    assert open_feeder(path, ctrl=False).drain(3).tolist() == [0, 1]
    assert open_feeder(path, missing="drop").drain(3).tolist() == [0, 1]
    assert open_feeder(path, missing="drop").ready(3).tolist() == [0]


def test_a_circle_is_named_by_ids(tmp_path: Path):
    with pytest.raises(CycleError, match="rank 0: nodes wait for one another in a cycle: (10 -> 11|11 -> 10)"):
        open_feeder(write(tmp_path / "w.et", s.node(10, type=4, data=[11]), s.node(11, type=4, data=[10])))


def test_of_nodes_with_one_id_the_first_is_meant(tmp_path: Path):
    path = write(
        tmp_path / "w.et", s.node(5, type=4, data=[3]), s.node(3, type=4, data=[9]), s.node(3, type=4), s.node(9)
    )
    feed = open_feeder(path)
    assert feed.drain(0).tolist() == feeder(read_job(path)).drain(0).tolist() == [2, 3, 1, 0]


def test_a_packed_file_must_be_unpacked_first(tmp_path: Path):
    path = write(tmp_path / "w.0.et", s.node(1, type=4))
    packed = tmp_path / "p.0.et.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(UsageError, match=r"p\.0\.et\.gz: the file is compressed.*\nhint: decompress it first"):
        open_feeder(packed)


def test_a_file_that_changed_is_refused(tmp_path: Path):
    path = write(tmp_path / "w.0.et", s.node(1, "a", 4), s.node(2, "b", 4))
    feed = open_feeder(path)
    feed.close()
    write(path, s.node(1, "a", 4), s.node(2, "longer", 4))
    os.utime(path, ns=(1, 1))
    with pytest.raises(FormatError, match="the file has changed since its feeder was made"):
        _ = feed.node(0, 1).name


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b"\x05\x0a", "byte 0: message 0 claims to run past the end"),
        (b"\x00\x05\x08\x01", "byte 1: message 1: a field runs past"),
        (b"\x00\x80", "byte 1: message 1: a number does not end"),
        (b"\x00\x02\x08\x80", "message 1: a number does not end"),
        (b"\x00\x02\x12\x09", "message 1: a field runs past"),
        (b"\x00\x02\x00\x01", "message 1: not a protobuf field"),
        (b"\x00\x01\x0f", "message 1: not a protobuf field"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes, problem: str):
    path = tmp_path / "w.0.et"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=problem):
        open_feeder(path)


def test_damage_inside_a_node_is_found_where_it_is_looked_at(tmp_path: Path):
    first = s.node(1, "fine", 4)
    path = write(tmp_path / "w.0.et", first, s.number(1, 2) + s.block(2, b"\xff"))
    feed = open_feeder(path, max_bytes=1)  # nodes one by one
    assert feed.node(0, 0).name == "fine"
    with pytest.raises(FormatError, match=rf"byte {3 + 1 + 1 + len(first) + 1 + 2}: text that is not UTF-8"):
        _ = feed.node(0, 1).name


def test_windows_smaller_than_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(et_stream, "_WINDOW", 16)
    nodes = [s.node(i + 1, "x" * (i * 37 % 300), 4, data=[i] if i else []) for i in range(50)]
    path = write(tmp_path / "w.0.et", *nodes)
    assert_same_feed(open_feeder(path), feeder(read_job(path)))


def test_groups_are_those_of_the_group_file(tmp_path: Path):
    call = [s.attribute("comm_type", "int64", 0), s.attribute("pg_name", "string", "2")]
    world = [s.attribute("comm_type", "int64", 0), s.attribute("pg_name", "string", "0")]
    for rank in range(4):
        write(tmp_path / f"w.{rank}.et", s.node(1, type=7, attributes=call), s.node(2, type=7, attributes=world))
    (tmp_path / "w.json").write_text('{"2": [1, 3]}')
    feed = open_feeder(tmp_path, max_open=1)
    for rank in range(4):
        assert (feed.node(rank, 0).group, feed.node(rank, 1).group) == ((1, 3), (0, 1, 2, 3))
    assert source(feed).open_files == 1
    assert source(feed).graph(0) is source(feed).graph(3)  # equal graphs are kept once
    assert_same_feed(feed, feeder(read_job(tmp_path)))


# -- against whole traces


@given(s.et_files())
@settings(deadline=None, max_examples=25)
def test_agrees_with_the_codec_on_unusual_files(tmp_path_factory: pytest.TempPathFactory, raw: bytes):
    path = tmp_path_factory.mktemp("et") / "w.0.et"
    path.write_bytes(raw)
    trace = decode(raw).trace
    for data, ctrl in ((True, True), (True, False), (False, True)):
        outcomes: list[Any] = []
        for make in (lambda: open_feeder(path, data=data, ctrl=ctrl), lambda: feeder(trace, data=data, ctrl=ctrl)):  # noqa: B023
            try:
                outcomes.append(make().drain(0).tolist())
            except (DanglingDependency, CycleError) as problem:
                outcomes.append(type(problem))
        assert outcomes[0] == outcomes[1]
    loose = open_feeder(path, data=False, ctrl=False)
    for node in range(len(trace)):
        assert loose.node(0, node).source_id == int(trace.source_id[node])
        assert loose.node(0, node).name == trace.text("name", node)


STG = ("gpt_cp2_dp2_tp2", "gpt_dp2_tp2_pp2_mb2", "gpt_pp4_mb8", "llama_fsdp_dp8_mp", "moe_dp2_ep4")


@pytest.mark.parametrize("name", STG)
def test_generated_sets_drain_completely(shared: Path, name: str):
    path = shared / "oracle" / "stg" / name
    job = read_job(path)
    assert_same_feed(open_feeder(path, max_bytes=1 << 20, max_open=2), feeder(job))


OFFICIAL = ("cpu_torch213", "h200_gpt_train", "h200_nccl/fsdp", "h200_nccl/sync", "official_tests")


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_pytorch_files_dangle_and_are_told_so(shared: Path, tmp_path: Path, name: str):
    packed = sorted((shared / "oracle" / "chakra_official" / name).glob("*.et.gz"))[-1]
    path = tmp_path / packed.name.removesuffix(".gz")
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    rank = int(open_feeder(path, ctrl=False).ranks[0])
    with pytest.raises(DanglingDependency, match=f"rank {rank}: node .* is not in the trace") as problem:
        open_feeder(path)
    assert "`ctrl=False`" in problem.value.hint
    job = read_job(path)
    with pytest.raises(DanglingDependency, match="is not in the trace") as again:
        feeder(job)
    assert str(again.value) == str(problem.value)
    assert_same_feed(open_feeder(path, ctrl=False), feeder(job, ctrl=False))
    if name == "official_tests":  # its control dependencies hold a node that waits for itself
        for make in (lambda: open_feeder(path, missing="drop"), lambda: feeder(job, missing="drop")):
            with pytest.raises(CycleError, match="cycle: 6347 -> 6347"):
                make()
    else:
        assert_same_feed(open_feeder(path, missing="drop"), feeder(job, missing="drop"))


# -- memory


def big(path: Path, n: int) -> Path:
    random = np.random.default_rng(0)
    nodes = (
        s.node(3 * i + 1, f"op{i}", 4, data=[3 * int(d) + 1 for d in random.integers(0, i, 3)] if i else [])
        for i in range(n)
    )
    return write(path, *nodes)


def test_memory_stays_within_the_bound(tmp_path: Path):
    n = 20_000
    edges = 3 * (n - 1)
    path = big(tmp_path / "w.0.et", n)
    open_feeder(write(tmp_path / "warm.0.et", s.node(1, type=4), s.node(3, type=4, data=[1]))).drain(0)
    window = 2 * path.stat().st_size  # smaller than a window here, read once and moved once
    tracemalloc.start()
    try:
        feed = open_feeder(path, max_bytes=100_000)
        scanning = tracemalloc.get_traced_memory()[1]
        feed.next(0)
        held = feed.nbytes
    finally:
        tracemalloc.stop()
    assert held <= 24.2 * n + 4 * edges + 1000
    assert scanning <= 64 * n + 8 * edges + window
    for node in (*range(0, n, 997), *range(0, n, 1009)):
        assert feed.node(0, node).name == f"op{node}"
        assert source(feed).decoded_nbytes <= 100_000
    assert feed.nbytes <= held + 100_000


def test_a_giant_among_small_nodes_is_decoded_alone(tmp_path: Path):
    nodes = [s.node(i + 1, "x" * (400_000 if i == 5 else 3), 4) for i in range(10)]
    feed = open_feeder(write(tmp_path / "w.0.et", *nodes), max_bytes=200_000)
    assert feed.node(0, 4).name == "xxx"
    assert source(feed).decoded_nbytes < 200_000
    assert len(feed.node(0, 5).name) == 400_000
    assert feed.node(0, 6).kind == Kind.COMP
    assert source(feed).decoded_nbytes < 200_000
