"""What ASTRA-sim needs of files and a Job does not hold."""

import json
from pathlib import Path

import pytest

from etude.base.errors import DeadlockError
from etude.make.generate import Plan, generate
from etude.make.generate.model import open_model
from etude.make.transform.dialects.astra import astra_problems, for_astra, order_problem
from etude.model.build import TraceBuilder
from etude.model.fold import fold
from etude.model.job import Job, assemble
from etude.model.schema import Collective, Kind
from etude.run import astra


def test_groups_are_numbers_from_one_and_copies_say_an_operation():
    job = generate(open_model("gpt2"), Plan(tp=2, pp=2, gpus=8)).job
    kinds = {"tp": 4, "dp": 4, "ends": 4, "world": 1}
    assert sorted(job.groups.names) == sorted(f"{kind}.{i}" for kind, many in kinds.items() for i in range(many))
    copies = sum(int(((t.kind == int(Kind.COMP)) & (t.flops == 0)).sum()) for t in job.traces)
    assert copies > 0
    written = for_astra(job)
    assert written.groups.names == tuple(str(i + 1) for i in range(len(job.groups)))
    assert (written.groups.members == job.groups.members).all()
    for before, after in zip(job.traces, written.traces, strict=True):
        compute = before.kind == int(Kind.COMP)
        assert (after.flops[compute] >= 1).all()
        assert (after.flops[before.flops > 0] == before.flops[before.flops > 0]).all()
        assert (after.flops[~compute] == before.flops[~compute]).all()


def exchange(sizes: list[int], *, groups: dict[str, list[int]] | None = None, kind=Collective.ALL_TO_ALL) -> Job:
    """A rank for each size, which brings it to a collective of all; a program of its own for each."""
    groups = groups or {"7": list(range(len(sizes)))}
    parts = []
    for rank, size in enumerate(sizes):
        builder = TraceBuilder()
        mine = next(name for name, members in groups.items() if rank in members)
        builder.add(Kind.COLL, group=mine, collective=kind, in_bytes=size, out_bytes=size + 8)
        parts.append(builder.part(rank, groups))
    return assemble("w", parts, more_groups=list(groups.items()))


def sent(job: Job) -> list[int]:
    return [int(job.trace(rank).in_bytes[0]) for rank in job.ranks.tolist()]


@pytest.mark.parametrize("folded", [False, True])
def test_members_of_a_collective_say_what_the_fullest_moves(folded: bool):
    job = exchange([100, 300, 200])
    job = fold(job) if folded else job
    assert len(job.traces) == (1 if folded else 3)
    assert astra_problems(job) == ["it hangs if members of a collective have different sizes (1 all_to_all)"]
    even = for_astra(job)
    assert sent(even) == [308, 308, 308]  # the second receives 308
    assert astra_problems(even) == []
    assert sent(for_astra(exchange([100, 300, 200], kind=Collective.ALL_GATHER))) == [300, 300, 300]
    assert sent(for_astra(exchange([100, 100]))) == [100, 100]


def test_other_groups_are_left_alone():
    pairs = {"1": [0, 1], "2": [2, 3]}
    assert sent(for_astra(exchange([100, 100, 5, 6], groups=pairs))) == [100, 100, 14, 14]


def test_numbers_of_groups_stay():
    assert for_astra(exchange([1, 1], groups={"12": [0, 1]})).groups.names == ("12",)
    for names in ({"tp": [0, 1], "3": [2, 3]}, {"0": [0, 1], "3": [2, 3]}):
        job = exchange([4096] * 4, groups=names)
        assert for_astra(job).groups.names == ("1", "2")
        assert "names of groups that are not numbers" in " ".join(astra_problems(job))


def test_what_it_cannot_run_is_named():
    alone = exchange([64, 64], groups={"1": [0], "2": [1]})
    assert astra_problems(alone) == ["it never ends a collective of a group of one rank (2 groups)"]
    clipped = exchange([4] * 8, kind=Collective.ALL_REDUCE)
    assert "fewer bytes than ranks" in " ".join(astra_problems(clipped))
    assert astra_problems(exchange([8] * 8, kind=Collective.ALL_REDUCE)) == []
    gather = exchange([8] * 2, kind=Collective.GATHER)
    assert astra_problems(gather) == ["it aborts on gather (2)"]
    builder = TraceBuilder()
    builder.add(Kind.SEND, dst=0, in_bytes=0)
    builder.add(Kind.COMP, flops=0)
    found = astra_problems(assemble("w", [builder.part(0, {})]))
    assert found == [
        "it aborts on messages of 0 bytes (1)",
        "with a roofline it takes 2**63 ns for compute nodes without operations (1)",
    ]
    assert astra_problems(for_astra(assemble("w", [builder.part(0, {})]))) == found[:1]


def two_reductions(work: list[int], *, ordered: bool) -> Job:
    """Two all-reduces of all ranks behind two computes beside each other: the first after 10 ns, the second after the
    work of the rank."""
    groups, parts = {"1": list(range(len(work)))}, []
    for rank, duration in enumerate(work):
        builder = TraceBuilder()
        first = builder.add(Kind.COMP, duration_ns=10_000, thread=1, cpu=1)
        second = builder.add(Kind.COMP, duration_ns=duration, stream=1, cpu=0)
        reduced = builder.add(Kind.COLL, group="1", collective=Collective.ALL_REDUCE, in_bytes=4096, data=[first])
        more = [second, reduced] if ordered else [second]
        builder.add(Kind.COLL, group="1", collective=Collective.ALL_REDUCE, in_bytes=8192, data=more)
        parts.append(builder.part(rank, groups))
    return assemble("w", parts, more_groups=list(groups.items()))


@pytest.mark.parametrize("folded", [False, True])
def test_collectives_that_ranks_may_begin_in_different_orders_are_counted(folded: bool, tmp_path: Path):
    """On rank 0 the second is ready first, on rank 1 the first is."""

    def job(work: list[int], *, ordered: bool) -> Job:
        made = two_reductions(work, ordered=ordered)
        return fold(made) if folded else made

    told = "it may hang: {} of ranks that do not take the same time {} no fixed order"
    apart = order_problem(job([1_000, 90_000], ordered=False))
    assert apart == told.format(*(("1 collective", "has") if folded else ("2 collectives", "have")))  # of each program
    assert order_problem(job([1_000, 90_000], ordered=True)) == ""
    assert order_problem(job([1_000, 1_000], ordered=False)) == ""
    assert apart in astra_problems(job([1_000, 90_000], ordered=False))
    with pytest.raises(DeadlockError):
        run(job([1_000, 90_000], ordered=False), tmp_path)
    run(job([1_000, 90_000], ordered=True), tmp_path)
    run(job([1_000, 1_000], ordered=False), tmp_path)


def test_collectives_that_hold_up_a_message_are_counted(tmp_path: Path):
    """Rank 0 begins an all-reduce while what it has to send is being made; rank 1 joins when it has come."""

    def job(*, behind: bool) -> Job:
        groups = {"1": [0, 1]}
        one, other = TraceBuilder(), TraceBuilder()
        made = one.add(Kind.COMP, duration_ns=9_000, stream=1, cpu=0)
        waits = [made] if behind else []
        one.add(Kind.SEND, dst=1, tag=7, in_bytes=64, data=[made])
        one.add(Kind.COLL, group="1", collective=Collective.ALL_REDUCE, in_bytes=4096, data=waits)
        come = other.add(Kind.RECV, src=0, tag=7, in_bytes=64)
        other.add(Kind.COLL, group="1", collective=Collective.ALL_REDUCE, in_bytes=4096, data=[come])
        return assemble("w", [one.part(0, groups), other.part(1, groups)], more_groups=list(groups.items()))

    assert (
        order_problem(job(behind=False)) == "it may hang: 1 collective may hold up messages that their members wait for"
    )
    assert order_problem(job(behind=True)) == ""
    with pytest.raises(DeadlockError):
        run(job(behind=False), tmp_path)
    run(job(behind=True), tmp_path)


def run(job: Job, folder: Path) -> None:
    """As ASTRA-sim, on two NPUs."""
    network, system = folder / "net.yml", folder / "sys.json"
    network.write_text("topology: [ Switch ]\nnpus_count: [ 2 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n")
    ring = {f"{kind}-implementation": ["ring"] for kind in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")}
    settings = {"scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1,
                "preferred-dataset-splits": 4, "collective-optimization": "localBWAware"}  # fmt: skip
    system.write_text(json.dumps({**settings, **ring}))
    astra.run(job, astra.read_network(network), astra.read_system(system))
