import json
import pickle
import tracemalloc
from pathlib import Path

import pytest

import etude
from etude.base.errors import EtudeError, FormatError, UsageError
from etude.model.schema import UNKNOWN, Collective, Kind
from flight_dumps import GOOD, dump, entry, message, read, refused, write

REFUSED = dict(refused())
READ = {name: (content, nodes) for name, content, nodes in read()}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_dump_is_refused_with_its_path(name: str, tmp_path: Path) -> None:
    place = tmp_path / "nccl_trace_rank_0"
    place.write_bytes(REFUSED[name])
    tracemalloc.start()
    try:
        with pytest.raises(EtudeError) as caught:
            etude.open(place)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "nccl_trace_rank_0" in str(caught.value)
    assert peak < 32 << 20


def test_the_corpus_is_large() -> None:
    assert len(REFUSED) >= 100


@pytest.mark.parametrize("name", READ)
def test_an_odd_dump_is_read(name: str, tmp_path: Path) -> None:
    content, nodes = READ[name]
    place = tmp_path / "nccl_trace_rank_0"
    place.write_bytes(content)
    assert len(etude.open(place).trace(0)) == nodes


def test_a_dump_that_is_damaged_beyond_recognition_is_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path, {rank: [entry(0)] for rank in range(3)})
    (tmp_path / "nccl_trace_rank_1").write_bytes(b"\x80\x04")
    with pytest.raises(FormatError, match="nccl_trace_rank_1"):
        etude.open(tmp_path)


def test_two_dumps_of_one_rank_are_refused(tmp_path: Path) -> None:
    for name in ("a_rank0", "b_rank0"):
        (tmp_path / name).write_bytes(pickle.dumps(GOOD))
    with pytest.raises(UsageError, match="two dumps belong to rank 0"):
        etude.open(tmp_path)


def test_a_dump_of_a_large_world_is_small(tmp_path: Path) -> None:
    """A group of all ranks need not list them: 1,000,000 is a number, not a list in the file."""
    place = tmp_path / "nccl_trace_rank_0"
    config = [{"pg_name": "0", "ranks": [], "group_size": 100_000}]
    place.write_bytes(json.dumps(dump([entry(0)], pg_config=config, rank=0)).encode())
    assert etude.open(place).world_size == 100_000


@pytest.mark.parametrize(
    ("name", "kind", "collective"),
    [("xccl:all_reduce", Kind.COLL, Collective.ALL_REDUCE), ("nccl:ALLTOALL_BASE", Kind.COLL, Collective.ALL_TO_ALL),
     ("nccl:all_to_all", Kind.COLL, Collective.ALL_TO_ALL), ("ALLGATHER_coalesced", Kind.COLL, Collective.ALL_GATHER),
     ("nccl:REDUCE_SCATTER_coalesced", Kind.COLL, Collective.REDUCE_SCATTER),
     ("rccl:_all_gather_base", Kind.COLL, Collective.ALL_GATHER), ("nccl:_reduce_oop", Kind.COLL, Collective.REDUCE),
     ("hccl:_broadcast_oop", Kind.COLL, Collective.BROADCAST), ("gloo:recvAnySource", Kind.RECV, Collective.NONE),
     ("nccl:all_reduce_barrier", Kind.COLL, Collective.BARRIER), ("ucc:alltoall", Kind.COLL, Collective.ALL_TO_ALL),
     ("nccl:all_to_all_v_single", Kind.COLL, Collective.ALL_TO_ALL),
     ("gloo:sparse_all_reduce", Kind.COLL, Collective.ALL_REDUCE), ("mccl:send 0->1", Kind.SEND, Collective.NONE),
     ("nccl:frobnicate", Kind.COLL, Collective.OTHER), ("nccl:split", Kind.COLL, Collective.OTHER)],
)  # fmt: skip
def test_spellings_of_all_backends(name: str, kind: Kind, collective: Collective, tmp_path: Path) -> None:
    place = tmp_path / "nccl_trace_rank_0"
    place.write_bytes(pickle.dumps(dump([entry(0, name)], rank=0)))
    job = etude.open(place)
    trace = job.trace(0)
    assert (trace.kind[0], trace.collective[0]) == (kind, collective)
    assert trace.text("name", 0) == name
    assert any("not known" in note.what for note in job.notes) == (collective == Collective.OTHER)


def test_coalesced_operations_have_the_times_and_the_state_of_their_group(tmp_path: Path) -> None:
    """Inside a group the operations are never seen to start or end; the entry behind them is, for all."""
    inside = {"state": "scheduled", "retired": False, "time_discovered_started_ns": None}
    inside |= {"time_discovered_completed_ns": None, "p2p_seq_id": 3}
    calls = [message(1, "nccl:send 0->1", **inside), message(2, "nccl:recv 0<-1", **inside)]
    calls += [message(3, "nccl:coalesced", p2p_seq_id=3, input_sizes=[], output_sizes=[])]
    calls += [message(4, "nccl:send 0->1", **(inside | {"p2p_seq_id": 4}))]  # its group is not closed yet
    place = tmp_path / "nccl_trace_rank_0"
    place.write_bytes(pickle.dumps(dump(calls, [0, 1], rank=0)))
    job = etude.open(place)
    assert job.timing is not None
    start, end = job.timing.block(0)
    assert job.trace(0).kind.tolist() == [Kind.SEND, Kind.RECV, Kind.SEND]
    assert start.tolist() == [4_000_010, 4_000_010, 5_000_000]
    assert end.tolist() == [4_000_500, 4_000_500, UNKNOWN]
    assert not [note for note in job.notes if "not known" in note.what]


def test_groups_of_one_name_and_other_members_are_apart(tmp_path: Path) -> None:
    """Groups that were split off share a name; ranks 2 and 3 have forgotten more calls than ranks 0 and 1."""
    for rank in range(4):
        members = [0, 1] if rank < 2 else [2, 3]
        calls = [entry(n) for n in range(0 if rank < 2 else 5, 8)]
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(dump(calls, members)))
    assert [len(etude.open(tmp_path).trace(rank)) for rank in range(4)] == [8, 8, 3, 3]
