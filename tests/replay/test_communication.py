"""The communication of a job as programs: order, sizes, waits; fewer processes than ranks; deadlocks found on paper."""

from itertools import pairwise

import numpy as np
import pytest

from etude.base.errors import DeadlockError, MismatchError, TraceError, UsageError
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind, ValueKind
from etude.run.replay.communication import plan_communication, rehearse, shrink
from etude.run.replay.communication.flight import differences
from etude.run.replay.program import CommKind, Program, StepKind
from tiny_jobs import GROUPS, ring

ALL = Collective.ALL_REDUCE
TYPES = "['Tensor(float)']"


def says(program: Program) -> list[str]:
    """The program in words: what is issued, and what is waited for."""
    found = []
    for kind, row in zip(program.steps.kind.tolist(), program.steps.row.tolist(), strict=True):
        if kind == StepKind.COMM:
            later = "" if program.comms.is_async[row] else " and wait"
            found.append(f"{CommKind(int(program.comms.kind[row])).name.lower()} {row}{later}")
        elif kind == StepKind.WAIT:
            found.append(f"wait {row}")
    return found


def two(build) -> Job:
    """Two ranks with the same program; `build(builder, rank)` adds its nodes."""
    builders = [TraceBuilder(), TraceBuilder()]
    for rank, b in enumerate(builders):
        build(b, rank)
    return job_of("job", builders, {"g": [0, 1], "h": [0, 1]})


# -- order and waits ---------------------------------------------------------------------------------------------------


def test_a_call_is_waited_for_before_the_first_call_that_needs_it():
    def build(b: TraceBuilder, rank: int) -> None:
        b.add(Kind.COMP, duration_ns=100)
        b.add(Kind.COLL, data=[0], collective=ALL, in_bytes=8, group="g", in_types=TYPES)  # overlaps node 2
        b.add(Kind.COMP, data=[0], duration_ns=50)
        b.add(Kind.COLL, data=[2], collective=ALL, in_bytes=16, group="h", in_types=TYPES)  # does not need node 1
        b.add(Kind.COMP, data=[1], duration_ns=30)
        b.add(Kind.COLL, data=[4], collective=ALL, in_bytes=24, group="g", in_types=TYPES)  # needs node 1

    program = plan_communication(two(build))[0]
    assert says(program) == ["all_reduce 0", "all_reduce 1", "wait 0", "all_reduce 2 and wait", "wait 1"]
    assert program.comms.in_bytes.tolist() == [8, 16, 24]
    assert [program.dtypes[d] for d in program.comms.dtype] == ["float32"] * 3
    # 100 ns before the first call, 50 more before the second, 30 between the wait for the first and the third
    steps = list(zip(program.steps.kind.tolist(), program.steps.row.tolist(), strict=True))
    assert [row for kind, row in steps if kind == StepKind.HOST] == [100, 50, 30]
    assert steps.index((StepKind.HOST, 30)) == steps.index((StepKind.WAIT, 0)) + 1


def test_the_order_of_a_queue_is_no_wait():
    """NCCL runs what a group issues in order, and gloo has threads: the host has not waited for the one before."""

    def build(b: TraceBuilder, rank: int) -> None:
        b.add(Kind.COLL, collective=ALL, in_bytes=8, group="g", stream=20)
        b.add(Kind.COLL, ctrl=[0], collective=ALL, in_bytes=8, group="g", stream=20)

    job = two(build)
    why = {"ctrl_why": np.array([2], np.uint8)}  # Why.STREAM
    job = job.replace(traces=tuple(t.replace(**why) for t in job.traces))
    assert says(plan_communication(job)[0]) == ["all_reduce 0", "all_reduce 1 and wait", "wait 0"]


def naive_waits(data: list[list[int]], talks: list[int]) -> list[int]:
    """Call i is waited for before the first call that has it among its ancestors with no call between."""
    found = []
    for call in talks:
        need = {call}
        first = len(talks)
        for node in range(call + 1, len(data)):
            if need & set(data[node]):
                if node in talks:
                    first = min(first, talks.index(node))
                else:
                    need.add(node)
        found.append(first)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_waits_are_those_of_the_naive_twin(seed: int):
    random = np.random.default_rng(seed)
    count = 14
    data = [
        sorted(random.choice(n, size=min(n, int(random.integers(0, 3))), replace=False).tolist()) for n in range(count)
    ]
    talks = sorted(random.choice(count, size=5, replace=False).tolist())

    def build(b: TraceBuilder, rank: int) -> None:
        for node in range(count):
            if node in talks:
                b.add(Kind.COLL, data=data[node], collective=ALL, in_bytes=8, group="g")
            else:
                b.add(Kind.COMP, data=data[node], duration_ns=1)

    program = plan_communication(two(build))[0]
    text, seen, at = says(program), {}, 0
    for one in text:
        if one.startswith("wait"):
            seen[int(one.split()[1])] = at
        else:
            at += 1
            if one.endswith("and wait"):
                seen[at - 1] = at
    assert [seen[i] for i in range(5)] == naive_waits(data, talks)


def test_messages_with_no_wait_between_them_are_one_batch():
    def build(b: TraceBuilder, rank: int) -> None:
        b.add(Kind.SEND, dst=1 - rank, tag=3, in_bytes=8)
        b.add(Kind.RECV, src=1 - rank, tag=3, in_bytes=8)
        b.add(Kind.COMP, data=[0, 1], duration_ns=5)
        b.add(Kind.SEND, data=[2], dst=1 - rank, tag=3, in_bytes=8)
        b.add(Kind.RECV, data=[3], src=1 - rank, tag=3, in_bytes=8)

    comms = plan_communication(two(build))[0].comms
    assert comms.batch.tolist() == [0, 0, -1, -1]
    assert comms.in_bytes.tolist() == [8, 0, 8, 0] and comms.out_bytes.tolist() == [0, 8, 0, 8]


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_rows_of_an_all_to_all_are_bytes_not_elements():
    """128 rows of 64 floats go in parts of 59 and 69 rows: the splits of the job are bytes."""

    def build(b: TraceBuilder, rank: int) -> None:
        mine = [59 * 256, 69 * 256] if rank == 0 else [58 * 256, 70 * 256]
        theirs = [59 * 256, 58 * 256] if rank == 0 else [69 * 256, 70 * 256]
        b.add(Kind.COLL, collective=Collective.ALL_TO_ALL, in_bytes=sum(mine), out_bytes=sum(theirs), group="g",
              in_types=TYPES, in_shapes="[[128, 64]]",
              attrs={"in_split": (ValueKind.INT64_LIST, mine),
                     "out_split": (ValueKind.INT64_LIST, theirs)})  # fmt: skip

    programs = plan_communication(two(build))
    assert programs[0].comms.in_splits[0] == [59 * 64, 69 * 64] and programs[0].comms.out_splits[0] == [
        59 * 64,
        58 * 64,
    ]
    assert rehearse(programs) == 1


def test_sizes_that_were_not_recorded_follow_from_the_group():
    def build(b: TraceBuilder, rank: int) -> None:
        b.add(Kind.COLL, collective=Collective.ALL_GATHER, in_bytes=100, group="g")
        b.add(Kind.COLL, collective=Collective.REDUCE_SCATTER, in_bytes=100, group="g")

    comms = plan_communication(two(build))[0].comms
    assert comms.in_bytes.tolist() == [100, 100] and comms.out_bytes.tolist() == [200, 50]


def test_what_is_not_known_is_refused():
    def unknown(b: TraceBuilder, rank: int) -> None:
        b.add(Kind.COLL, collective=Collective.OTHER, in_bytes=8, group="g", source_id=7)

    def no_size(b: TraceBuilder, rank: int) -> None:
        b.add(Kind.COLL, collective=ALL, group="g", source_id=7)

    def nobody(b: TraceBuilder, rank: int) -> None:
        b.add(Kind.COLL, collective=ALL, in_bytes=8, group="elsewhere", source_id=7)

    for build, words in ((unknown, "of unknown kind"), (no_size, "the size of a collective"),
                         (nobody, "the members of group")):  # fmt: skip
        with pytest.raises(TraceError, match=words) as caught:
            plan_communication(two(build))
        assert caught.value.where == "rank 0, node 7"
    with pytest.raises(UsageError, match="ranks 5 are not in the job"):
        plan_communication(two(unknown), [0, 5])


# -- rehearsal ---------------------------------------------------------------------------------------------------------


def test_a_ring_of_four_takes_place():
    # 4 sums over pairs (each seen by 2 ranks), and 4 messages
    assert rehearse(plan_communication(job_of("ring", [ring(r) for r in range(4)], GROUPS))) == 8


def test_two_groups_in_another_order_are_a_deadlock_before_anything_starts():
    def build(b: TraceBuilder, rank: int) -> None:
        for number, group in enumerate(("g", "h") if rank == 0 else ("h", "g")):
            b.add(Kind.COLL, data=[number - 1] if number else [], collective=ALL, in_bytes=8, group=group)

    with pytest.raises(DeadlockError, match="2 of 2 ranks would never complete; nothing was started") as caught:
        rehearse(plan_communication(two(build)))
    assert caught.value.exit_code == 1
    assert [(w["rank"], w["waits_for"]) for w in caught.value.waiting] == [(0, [1]), (1, [0])]


def test_async_calls_in_another_order_of_groups_are_none():
    def build(b: TraceBuilder, rank: int) -> None:
        for group in ("g", "h") if rank == 0 else ("h", "g"):
            b.add(Kind.COLL, collective=ALL, in_bytes=8, group=group)

    assert rehearse(plan_communication(two(build))) == 2


@pytest.mark.parametrize(
    ("mine", "theirs", "words"),
    [
        ({"in_bytes": 8}, {"in_bytes": 12}, "all_reduce of 8 B"),
        ({"in_bytes": 8}, {"in_bytes": 8, "collective": Collective.BROADCAST}, "broadcast of 8 B"),
    ],
)
def test_members_that_disagree_are_named(mine, theirs, words):
    def build(b: TraceBuilder, rank: int) -> None:
        b.add(Kind.COLL, **({"collective": ALL, "group": "g"} | (theirs if rank else mine)))

    with pytest.raises(MismatchError, match=words):
        rehearse(plan_communication(two(build)))


def test_shares_of_an_all_to_all_that_disagree_are_named():
    def build(b: TraceBuilder, rank: int) -> None:
        splits = (ValueKind.INT64_LIST, [4, 8])
        b.add(Kind.COLL, collective=Collective.ALL_TO_ALL, in_bytes=12, out_bytes=12, group="g",
              attrs={"in_split": splits, "out_split": splits})  # fmt: skip

    with pytest.raises(MismatchError, match="rank 0 sends 8 B to rank 1, which receives 4 B from it"):
        rehearse(plan_communication(two(build)))


def test_a_message_nobody_sends_is_a_deadlock():
    def build(b: TraceBuilder, rank: int) -> None:
        b.add(Kind.RECV, src=1 - rank, tag=1, in_bytes=4) if rank else b.add(Kind.COMP, duration_ns=1)

    with pytest.raises(DeadlockError, match="receives 4 B from rank 0 with tag 1, waits for rank 0, which has no such"):
        rehearse(plan_communication(two(build)))


# -- fewer processes ---------------------------------------------------------------------------------------------------


def four_gather(b: TraceBuilder, rank: int) -> None:
    """A group of 4, a message to the next, an all-to-all with other shares to each."""
    shares = [[4 * (1 + ((i + j) % 4)) for j in range(4)] for i in range(4)]
    b.add(Kind.COLL, collective=Collective.ALL_GATHER, in_bytes=16, out_bytes=64, group="all", in_types=TYPES)
    b.add(Kind.COLL, collective=Collective.REDUCE_SCATTER, in_bytes=64, out_bytes=16, group="all", in_types=TYPES)
    b.add(Kind.COLL, collective=ALL, in_bytes=40, group="all", in_types=TYPES)
    mine, theirs = shares[rank], [row[rank] for row in shares]
    b.add(Kind.COLL, collective=Collective.ALL_TO_ALL, in_bytes=sum(mine), out_bytes=sum(theirs), group="all",
          in_types=TYPES,
          attrs={"in_split": (ValueKind.INT64_LIST, mine), "out_split": (ValueKind.INT64_LIST, theirs)})  # fmt: skip
    b.add(Kind.SEND, dst=(rank + 1) % 4, in_bytes=4)
    b.add(Kind.RECV, src=(rank - 1) % 4, in_bytes=4)


def four() -> Job:
    builders = [TraceBuilder() for _ in range(4)]
    for rank, b in enumerate(builders):
        four_gather(b, rank)
    return job_of("job", builders, {"all": [0, 1, 2, 3]})


def test_buffers_are_kept_or_shares_are():
    programs = plan_communication(four(), [0, 1])
    kept = [shrink(p, [0, 1], "kept") for p in programs]
    # gathered by 2 in place of 4, the buffer of 64 B is made of shares of 32 B
    assert list(zip(kept[0].comms.in_bytes[:3].tolist(), kept[0].comms.out_bytes[:3].tolist(), strict=True)) == [
        (32, 64), (64, 32), (40, 40)]  # fmt: skip
    scaled = [shrink(p, [0, 1], "scaled") for p in programs]
    assert list(zip(scaled[0].comms.in_bytes[:3].tolist(), scaled[0].comms.out_bytes[:3].tolist(), strict=True)) == [
        (16, 32), (32, 16), (40, 40)]  # fmt: skip
    # rank 0 gives 1 and 2 elements of its 1, 2, 3, 4, and takes 1 and 2 of its 1, 2, 3, 4
    assert scaled[0].comms.in_splits[3] == [1, 2] and int(scaled[0].comms.in_bytes[3]) == 12
    assert kept[0].comms.in_splits[3] == [2, 4] and int(kept[0].comms.in_bytes[3]) == 24
    assert rehearse(kept) == 5 and rehearse(scaled) == 5  # 4 collectives, and the message from 0 to 1
    assert kept[0].about["shrunk"]["left_out"] == {"recv": 1} and kept[0].about["shrunk"]["sizes"] == "kept"
    assert kept[0].groups == ((0, 1),)


def test_all_ranks_are_no_fewer():
    programs = plan_communication(four())
    assert all(shrink(p, [0, 1, 2, 3]) is p for p in programs)


def test_a_rank_alone_has_nobody_to_talk_to():
    (program,) = (shrink(p, [2]) for p in plan_communication(four(), [2]))
    assert says(program) == [] and sum(program.about["shrunk"]["left_out"].values()) == 6


def test_a_root_without_a_process_is_stood_in_for():
    def build(b: TraceBuilder) -> None:
        b.add(Kind.COLL, collective=Collective.BROADCAST, in_bytes=8, group="all",
              attrs={"comm_root": (ValueKind.INT32, 3)})  # fmt: skip

    builders = [TraceBuilder() for _ in range(4)]
    for b in builders:
        build(b)
    programs = [shrink(p, [1, 2]) for p in plan_communication(job_of("job", builders, {"all": [0, 1, 2, 3]}), [1, 2])]
    assert [int(p.comms.peer[0]) for p in programs] == [1, 1] and rehearse(programs) == 1


def test_random_jobs_shrunk_still_agree():
    for seed in range(8):
        random = np.random.default_rng(seed)
        shares = random.integers(0, 9, (6, 6)) * 4
        builders = [TraceBuilder() for _ in range(6)]
        for rank, b in enumerate(builders):
            for _ in range(2):
                b.add(Kind.COLL, collective=Collective.ALL_TO_ALL, in_bytes=int(shares[rank].sum()),
                      out_bytes=int(shares[:, rank].sum()), group="all", in_types=TYPES,
                      attrs={"in_split": (ValueKind.INT64_LIST, shares[rank].tolist()),
                             "out_split": (ValueKind.INT64_LIST, shares[:, rank].tolist())})  # fmt: skip
        job = job_of("job", builders, {"all": range(6)})
        chosen = sorted(random.choice(6, 3, replace=False).tolist())
        for sizes in ("kept", "scaled"):
            assert rehearse([shrink(p, chosen, sizes) for p in plan_communication(job, chosen)]) == 2


# -- what the Flight Recorder saw --------------------------------------------------------------------------------------


def entry(name: str, into: list[int], out: list[int], group: str = "0") -> dict:
    return {"profiling_name": name, "process_group": (group, "x"), "input_sizes": [into], "input_dtypes": ["Float"],
            "output_sizes": [out], "output_dtypes": ["Float"]}  # fmt: skip


def test_what_was_recorded_is_held_against_the_program():
    program = plan_communication(four(), [0])[0]
    rows, groups = [0, 1, 2, 3], dict.fromkeys(range(4), "0")
    right = [entry("gloo:all_gather", [4], [4, 4]), entry("gloo:all_reduce", [16], [16]),
             entry("gloo:all_reduce", [10], [10]), entry("gloo:all_to_all", [10], [10])]  # fmt: skip
    assert differences(program, rows, right, groups, gloo=True) == []
    smaller = [*right[:2], entry("gloo:all_reduce", [9], [9]), right[3]]
    assert differences(program, rows, smaller, groups, gloo=True) == [
        "call 3, all_reduce: 40 and 40 B planned, 36 and 36 B recorded"
    ]
    assert differences(program, rows, [right[1], right[0], *right[2:]], groups, gloo=True)[0].endswith("all_reduce")
    assert (
        "on group 1, not 0"
        in differences(program, rows, [entry("gloo:all_gather", [4], [4, 4], "1"), *right[1:]], groups, gloo=True)[0]
    )
    assert differences(program, rows, right[:3], groups, gloo=True) == ["4 calls were issued but 3 were recorded"]


# -- recorded runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["colls_4p", "dp_tp_4p", "fsdp2_2p", "moe_2p", "pp_1f1b_4p", "tp_sp_2p"])
def test_a_recorded_run_is_planned_and_takes_place(shared, name):
    """Every communication of the recording is one call of a program, with its bytes, in its order."""
    from etude.capture.opening import open as open_job

    job = open_job(shared / "traces" / "torch_cpu" / name)
    programs = plan_communication(job)
    for rank, program in zip(job.ranks.tolist(), programs, strict=True):
        trace = job.trace(rank)
        nodes = [n for n in range(len(trace)) if trace.kind[n] in (Kind.COLL, Kind.SEND, Kind.RECV)]
        played = program.steps.node[program.steps.kind == StepKind.COMM].tolist()
        assert sorted(played) == nodes
        sizes = np.maximum(program.comms.in_bytes, program.comms.out_bytes)
        assert sizes.tolist() == [max(int(trace.in_bytes[n]), int(trace.out_bytes[n]), 0) for n in played]
        assert all(a < b for a, b in pairwise(played))
    assert rehearse(programs) > 0
