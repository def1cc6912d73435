"""data: batches before steps, worked out by hand; storage nodes as protobuf reads them."""

import json
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import json_format

import chakra_pb
import etude
from etude.base.errors import FormatError, UsageError
from etude.machine import open_system
from etude.machine.system import System
from etude.make.generate import Plan, generate
from etude.make.generate.model import Model
from etude.make.transform.dialects import as_memory, as_storage
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.store import chakra
from etude.surface.cli import main
from toy_systems import one_level

ONE = one_level("switch", 2)
SMALL = {"name": "small", "layers": 2, "hidden": 64, "heads": 8, "ffn": 128, "vocab": 256, "seq": 64}


def steps(*times_ns: int) -> Job:
    b, before = TraceBuilder(), []
    for number, took in enumerate(times_ns):
        before = [b.add(Kind.COMP, "step", data=before, duration_ns=took, step=number)]
    return job_of("steps", [b], {})


def takes(edit: str, job: Job | None = None) -> int:
    return etude.simulate(etude.edit(job or steps(*[100] * 10), edit), ONE).makespan_ns


@pytest.mark.parametrize(
    ("edit", "wanted"),
    [
        ("sample=50B read=1GB/s", 50 + 10 * 100),  # reads are hidden, but for the first
        ("sample=150B read=1GB/s", 10 * 150 + 100),  # steps are hidden, but for the last
        ("sample=25B samples=6 read=1GB/s", 10 * 150 + 100),
        ("sample=300B read=1GB/s ratio=2", 10 * 150 + 100),
        ("sample=80B read=1GB/s decode=1GB/s", 10 * (80 + 80) + 100),  # one thread reads and decodes in turn
        ("sample=80B read=1GB/s decode=1GB/s lanes=own", 80 + 80 + 10 * 100),
        ("sample=120B read=1GB/s decode=1GB/s lanes=own", 120 + 10 * 120 + 100),
        ("sample=300B rate=1GB/s", 10 * 300 + 100),  # one worker
        ("sample=300B rate=1GB/s workers=4 queue=8", 300 + 10 * 100),  # 75 a batch
        ("sample=600B rate=1GB/s workers=4 queue=8", 3 * 600 + 200),  # 150 a batch: 4, 4 and 2 of them, and two steps
        ("sample=50B copy=1GB/s", 10 * 150),  # while the step waits
        ("sample=50B store=1GB/s", 50 + 10 * 100),
        ("sample=100B", 10 * 100),  # infinitely fast: no data plane
    ],
)
def test_a_step_waits_for_the_slowest_stage(edit: str, wanted: int):
    assert takes(f"data {edit}") == wanted


@pytest.mark.parametrize(("queue", "pause", "lost"), [(2, 150, 0), (2, 151, 1), (4, 350, 0), (4, 400, 50), (1, 50, 0)])
def test_a_queue_hides_an_interruption(queue: int, pause: int, lost: int):
    """A batch may begin `queue` steps before it is taken, and takes 50."""
    assert takes(f"data sample=50B read=1GB/s queue={queue} pause={pause}ns at=8") == 50 + 1000 + lost


@pytest.mark.parametrize(
    ("edit", "wanted"),
    [
        ("producers=1 make=1GB/s", 10 * 150 + 100),  # one machine makes 150 B a batch
        ("producers=2 make=1GB/s queue=4", 150 + 10 * 100),  # two of them 75
        ("producers=2 make=1GB/s queue=4 read=1GB/s", 10 * 150 + 150 + 100),  # the rank reads what was made
        ("producers=8 commit=150ns queue=4", 10 * 150 + 100),  # in order, one after another
        # commits of 60, 70, ... 150: from the fifth on they are slower than a step
        ("producers=8 commit=60ns grows=10ns queue=20", sum(range(60, 160, 10)) + 100),
        ("producers=8 commit=0 grows=0", 10 * 100),
        # two batches in each commit of 240, half of a queue of 4: five commits, then the last two steps
        ("producers=8 commit=240ns commits=adaptive queue=4", 5 * 240 + 2 * 100),
        ("producers=8 commit=240ns commits=fixed queue=4", 10 * 240 + 100),
        # 150 B are made in 150; a commit of 40 is shorter than that, and so of one batch
        ("producers=1 make=1GB/s commit=40ns commits=adaptive queue=4", 10 * 150 + 40 + 100),
        # 60, 160, 260; after every third batch one is left in the manifest: twice 160, 260, 360, and 160; all but the
        # first are longer than the step that runs beside them
        ("producers=8 commit=60ns grows=100ns reclaim=3 queue=1", 480 + 2 * 780 + 160 + 100),
    ],
)
def test_batches_of_producers(edit: str, wanted: int):
    assert takes(f"data sample=150B {edit}") == wanted


@pytest.mark.parametrize(("pause", "lost"), [(100, 0), (250, 0), (251, 1), (400, 150)])
def test_a_queue_hides_a_fault_of_a_producer(pause: int, lost: int):
    """A batch may begin 4 steps before it is taken, and takes one of two producers 150: 250 cost nothing."""
    asked = f"data sample=150B producers=2 make=1GB/s queue=4 pause={pause}ns at=12 of=producer"
    job = steps(*[100] * 16)
    assert takes(asked, job) == 150 + 1600 + lost
    assert len(batches(etude.edit(job, asked), 0)) == 16  # each once, whatever fails


def test_the_system_says_what_feeds_it():
    fed = System.from_dict(
        {**ONE.to_dict(), "data": {"producers": 2, "make": "1GB/s", "commit": "20ns", "queue": 4, "store": "1GB/s"}}
    )
    assert System.from_dict(fed.to_dict()) == fed
    job = steps(*[100] * 10)
    by_system = etude.edit(job, "data sample=150B", system=fed)
    said = etude.edit(job, "data sample=150B producers=2 make=1GB/s commit=20ns queue=4 store=1GB/s")
    assert etude.simulate(by_system, ONE).makespan_ns == etude.simulate(said, ONE).makespan_ns == 1500 + 170 + 100
    free = etude.edit(job, "data sample=150B producers=0 make=inf commit=0 store=inf", system=fed)
    assert etude.simulate(free, ONE).makespan_ns == 1000


def made(**plan: int) -> Job:
    return generate(Model.from_dict(SMALL), Plan.from_dict({"gpus": 2, "global_batch": 4, "zero": 1, **plan})).job


def batches(job: Job, rank: int) -> np.ndarray:
    trace = job.trace(rank)
    codes, words = trace.coded("name")
    return np.flatnonzero(codes == words.index("batch")) if "batch" in words else np.zeros(0, np.int64)


def test_every_micro_batch_takes_one_batch_on_every_rank():
    job = made(steps=3)
    changed = etude.edit(job, "data sample=1MB read=1GB/s")
    for rank in range(2):
        trace, rows = changed.trace(rank), batches(changed, rank)
        assert sorted(zip(trace.step[rows].tolist(), trace.micro_batch[rows].tolist(), strict=True)) == [
            (s, m) for s in range(3) for m in range(2)
        ]
    assert not [one for one in etude.check(changed) if one.severity == "error"]


def test_ranks_that_are_sent_their_input_read_nothing():
    changed = etude.edit(made(pp=2, zero=0), "data sample=1MB read=1GB/s")
    assert len(batches(changed, 0)) == 4 and len(batches(changed, 1)) == 0


def test_a_batch_is_there_for_all_at_once():
    """Rank 1 reads 1 ms longer, so that with a barrier rank 0 begins as late as rank 1."""
    begins = {}
    for visible in ("rank", "all"):
        words = [f"data sample=1kB read=1GB/s ranks={r} visible={visible}" for r in range(2)]
        changed = (
            etude.edit(made(global_batch=2, zero=0), words[0], f"{words[1]} pause=1ms") if visible == "rank" else None
        )
        changed = changed or etude.edit(made(global_batch=2, zero=0), f"data sample=1kB read=1GB/s visible={visible}")
        timing = etude.simulate(changed, open_system("dgx-h100").for_ranks(2)).timing
        begins[visible] = [int(timing.block(r)[0][batches(changed, r)[0]]) for r in range(2)]
        calls = changed.trace(0).collective
        assert (calls == Collective.BARRIER).sum() == (visible == "all")
    assert begins["rank"] == [1_000, 1_001_000]
    assert begins["all"][0] == begins["all"][1] >= 1_000


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ("data", "sample"),
        ("data sample=1MB tier=disk", "the read rate of `disk` is not known"),
        ("data sample=1MB ratio=0", "out of range"),
        ("data sample=1MB queue=0", "not a whole number of at least 1"),
        ("data sample=1MB read=1GB/s visible=all", "1 of 2 ranks read samples"),
        ("data sample=1MB make=1GB/s", "no producer"),
        ("data sample=1MB commits=adaptive", "no producer"),
        ("data sample=1MB read=1GB/s pause=1s of=producer", "no producer"),
    ],
)
def test_what_is_not_known_is_refused(edit: str, told: str):
    with pytest.raises(UsageError, match=told):
        etude.edit(made(pp=2, zero=0), edit)


def test_a_tier_gives_rate_and_latency():
    """3.5 MB at 3.5 GB/s behind 50 us."""
    changed = etude.edit(steps(100), "data sample=3500kB tier=disk", system=open_system("h200-server")).trace(0)
    assert changed.duration_ns[changed.kind == Kind.MEM_LOAD].tolist() == [1_050_000, 0]


# -- as newer Chakra has it --------------------------------------------------------------------------------------------

NEWER = chakra_pb.PROTO.read_text(encoding="utf-8").replace(
    "message Node {", "message Node { StorageInfo storage = 11;"
)
NEWER += """
message StorageInfo { int32 level = 1; oneof detail { FsOp fs = 10; } }
message FsOp { int32 op = 1; string pathname = 2; int32 fd = 3; uint64 offset = 4; uint64 size_bytes = 5; }
"""


@pytest.fixture(scope="module")
def job() -> Job:
    job = generate(
        Model.from_dict(SMALL), Plan.from_dict({"gpus": 1, "global_batch": 1, "checkpoint": True, "data_loading": True})
    ).job
    return etude.edit(job, "data sample=4kB samples=2 read=1GB/s ratio=2")


def test_storage_nodes_are_what_protobuf_reads(job: Job, tmp_path: Path):
    chakra.write_job(as_storage(job), tmp_path)
    _, nodes = chakra_pb.read_messages(next(tmp_path.glob("*.et")), schema=chakra_pb.build(NEWER))
    read = [n for n in nodes if n.type == 8]
    assert [(n.storage.level, n.storage.fs.op, n.storage.fs.size_bytes) for n in read] == [(1, 3, 4000)]
    sizes = {n.type: next(a.uint64_val for a in n.attr if a.name == "tensor_size") for n in nodes if n.type in (9, 10)}
    assert sizes[9] in (8000, 16 * 64)  # the batch of the edit, and the token ids of the generator
    assert sum(n.type == 9 for n in nodes) == 2 and sum(n.type == 10 for n in nodes) == 1


def test_storage_nodes_come_back_as_memory_nodes(job: Job, tmp_path: Path):
    chakra.write_job(as_storage(job), tmp_path)
    read = etude.open(tmp_path)
    assert etude.diff(read, as_storage(job)) is None
    back, left = as_memory(read)
    assert left == 0 and etude.diff(back, job) is None
    assert etude.simulate(back, ONE).makespan_ns == etude.simulate(job, ONE).makespan_ns


def test_storage_nodes_of_others_keep_what_they_say(tmp_path: Path):
    schema = chakra_pb.build(NEWER)
    attr = schema.Attribute(name="tensor_size", uint64_val=7)
    operations = [(3, 4096), (6, 512), (7, 0)]  # read, pwrite, fsync
    nodes = [
        schema.Node(id=i, name="io", type=8, duration_micros=5, storage=schema.StorageInfo(
            level=1, fs=schema.FsOp(op=op, pathname="/data/a", fd=3, offset=9, size_bytes=size)))
        for i, (op, size) in enumerate(operations)
    ] + [schema.Node(id=3, name="ckpt", type=10, attr=[attr]), schema.Node(id=4, name="batch", type=9)]  # fmt: skip
    (tmp_path / "x.0.et").write_bytes(chakra_pb.write_messages(schema.GlobalMetadata(version="1"), nodes))
    foreign = etude.open(tmp_path)
    assert (foreign.trace(0).kind == Kind.OTHER).all()
    plain, left = as_memory(foreign)
    trace = plain.trace(0)
    assert left == 2  # a flush has no bytes, and the batch does not say its own
    assert trace.kind.tolist() == [Kind.MEM_LOAD, Kind.MEM_STORE, Kind.OTHER, Kind.MEM_STORE, Kind.OTHER]
    assert trace.tensor_bytes[[0, 1, 3]].tolist() == [4096, 512, 7]
    (tmp_path / "again").mkdir()
    chakra.write_job(as_storage(plain), tmp_path / "again")
    _, again = chakra_pb.read_messages(next((tmp_path / "again").glob("*.et")), schema=schema)
    assert [n.storage.fs.pathname for n in again[:3]] == ["/data/a"] * 3
    assert [n.type for n in again] == [8, 8, 8, 10, 9]


def test_the_command_writes_and_reads_them(job: Job, tmp_path: Path):
    plain, typed, memory = (str(tmp_path / name) for name in ("plain", "typed", "memory"))
    Path(plain).mkdir()
    chakra.write_job(job, Path(plain))
    assert main(["convert", plain, typed, "--dialect", "storage"]) == 0
    assert main(["convert", typed, memory, "--dialect", "memory"]) == 0
    assert etude.diff(etude.open(memory), etude.open(plain)) is None


def test_json_says_them_by_name_and_gives_the_same_bytes_again(job: Job, tmp_path: Path):
    plain, typed, spoken, again, memory = (tmp_path / name for name in ("plain", "typed", "json", "again", "memory"))
    plain.mkdir()
    chakra.write_job(job, plain)
    assert main(["convert", str(plain), str(typed), "--dialect", "storage"]) == 0
    assert main(["convert", str(plain), str(spoken), "--to", "json", "--dialect", "storage"]) == 0
    nodes = json.loads(next(spoken.glob("*.0.json")).read_text())["nodes"]
    assert [n["storage"] for n in nodes if n.get("type") == "STORAGE_NODE"] == [
        {"level": 1, "fs": {"op": 3, "sizeBytes": "4000"}}
    ]
    assert sum(n.get("type") in ("BATCH_NODE", "CHECKPOINT_NODE") for n in nodes) == 3
    newer = chakra_pb.build(NEWER.replace("METADATA_NODE = 1;", "METADATA_NODE = 1; STORAGE_NODE = 8; BATCH_NODE = 9; "
                                          "CHECKPOINT_NODE = 10;"))  # fmt: skip
    read = [json_format.ParseDict(node, newer.Node()) for node in nodes]  # protobuf's own reader
    assert [n.storage.fs.size_bytes for n in read if n.type == 8] == [4000]
    assert main(["convert", str(spoken), str(again), "--to", "et"]) == 0
    assert [p.read_bytes() for p in sorted(again.glob("*.et"))] == [p.read_bytes() for p in sorted(typed.glob("*.et"))]
    assert main(["convert", str(spoken), str(memory), "--to", "json", "--dialect", "memory"]) == 0
    assert etude.diff(etude.open(memory), etude.open(plain)) is None


@pytest.mark.parametrize(
    ("storage", "told"),
    [
        ({"level": "high"}, "storage.level"),
        ({"fs": {"size": 3}}, "unknown field `size`"),
        ({"fs": {"pathname": 3}}, "not text"),
        ({"fs": 3}, "expected an object"),
    ],
)
def test_json_with_odd_storage_is_refused(storage: object, told: str, tmp_path: Path):
    nodes = [{"id": "1", "type": "STORAGE_NODE", "storage": storage}]
    (tmp_path / "x.0.json").write_text(json.dumps({"metadata": {}, "nodes": nodes}))
    with pytest.raises(FormatError, match=told):
        etude.open(tmp_path)
