"""Each edit by hand, on jobs that fit on a screen. The toy systems move 1 byte a ns, 10 ns a hop."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.base.errors import CycleError, UsageError
from etude.machine import open_system
from etude.make.generate import Plan, generate
from etude.make.generate.model import Model
from etude.make.transform.edits import apply_edits
from etude.model.build import TraceBuilder, build_trace, job_of
from etude.model.job import Job
from etude.model.schema import UNKNOWN, Collective, Kind, Why
from etude.model.trace import Trace
from jobs import job_with
from toy_systems import one_level

TWO = one_level("switch", 2)
SMALL = {"name": "small", "layers": 4, "hidden": 64, "heads": 8, "ffn": 128, "vocab": 256, "seq": 64}


def takes(job: Job, *edits: str, on=TWO, **options) -> int:
    return etude.simulate(etude.edit(job, *edits, system=on), on, **options).makespan_ns


def calls(*sizes: int, kind: Collective = Collective.ALL_REDUCE, between: int = 0) -> Job:
    """All-reduces one after another, with compute between them, on two ranks."""
    builders = []
    for _ in range(2):
        b, before = TraceBuilder(), []
        for number, size in enumerate(sizes):
            if between:
                before = [b.add(Kind.COMP, f"work{number}", data=before, duration_ns=between)]
            b.add(
                Kind.COLL, f"call{number}", data=before if between else [], collective=kind, in_bytes=size, group="dp"
            )
        builders.append(b)
    return job_of("calls", builders, {"dp": [0, 1]})


# -- drop --------------------------------------------------------------------------------------------------------------


def test_drop_joins_what_was_before_to_what_comes_after():
    b = TraceBuilder()
    b.add(Kind.COMP, "a", duration_ns=10)
    b.add(Kind.COMP, "x", data=[0], duration_ns=5)
    b.add(Kind.COMP, "y", data=[1], ctrl=[0], duration_ns=5)
    b.add(Kind.COMP, "z", data=[2], duration_ns=10)
    found = etude.edit(job_of("one", [b]), "drop op=x,y").trace(0)
    assert [found.text("name", row) for row in range(2)] == ["a", "z"]
    assert found.data.tolist() == [0]
    assert found.data_start.tolist() == [0, 0, 1]
    assert found.ctrl.tolist() == []  # data already says it


def test_drop_keeps_the_kind_of_edge_that_led_over_what_went():
    b = TraceBuilder()
    for name, data, ctrl in (("a", [], []), ("b", [], []), ("x", [0], [1]), ("z", [2], [])):
        b.add(Kind.COMP, name, data=data, ctrl=ctrl, duration_ns=1)
    found = etude.edit(job_of("one", [b]), "drop op=x").trace(0)
    assert found.data[found.data_start[2] :].tolist() == [0]
    assert found.ctrl[found.ctrl_start[2] :].tolist() == [1]


def test_drop_of_a_call_on_some_of_its_members_is_refused():
    with pytest.raises(UsageError, match="ranks would no longer agree"):
        etude.edit(calls(8, 8), "drop kind=collective ranks=0")


def test_drop_around_an_exchange_takes_the_permutations():
    """2 x tokens x top_k x hidden x 2 bytes are read and written by each of a mixture's permutations."""
    model = Model.from_dict({**SMALL, "experts": 4, "top_k": 2, "expert_ffn": 32})
    job = generate(model, Plan.from_dict({"gpus": 4, "ep": 4, "global_batch": 4})).job
    less = etude.edit(job, "drop around=all_to_all")
    before, after = job.trace(0), less.trace(0)
    gone = [row for row in range(len(before)) if before.source_id[row] not in set(after.source_id.tolist())]
    assert {before.text("name", row) for row in gone} == {"aten::index_select"}
    assert {int(before.tensor_bytes[row]) for row in gone} == {2 * 64 * 2 * 64 * 2}
    assert len(gone) == 2 * 2 * 4  # dispatch and combine, forward and backward, of four layers
    payload = [t.in_bytes[t.kind == Kind.COLL].tolist() for t in (before, after)]
    assert payload[0] == payload[1]


def test_half_of_a_message_is_not_edited():
    a, b = TraceBuilder(), TraceBuilder()
    a.add(Kind.SEND, "s", dst=1, tag=0, in_bytes=100)
    b.add(Kind.RECV, "r", src=0, tag=0, in_bytes=100)
    with pytest.raises(UsageError, match="ranks would no longer agree"):
        etude.edit(job_of("one", [a, b]), "compress kind=send ratio=2")


# -- fuse, merge -------------------------------------------------------------------------------------------------------


def elementwise(*names: str, shape: str = "[[1000]]") -> dict:
    n = len(names)
    return {
        "kind": [int(Kind.COMP)] * n, "name": list(names), "stream": [7] * n, "cpu": [0] * n,
        "flops": [1000] * n, "tensor_bytes": [4000] * n, "in_shapes": [shape] * n, "out_shapes": [shape] * n,
        "in_types": ["['Tensor(c10::BFloat16)']"] * n, "out_types": ["['Tensor(c10::BFloat16)']"] * n,
    }  # fmt: skip


def test_fuse_adds_flops_and_saves_what_lies_between():
    columns = elementwise("aten::mm", "aten::silu", "aten::mul", "aten::add", "aten::mm")
    chain = build_trace(columns, data=(np.arange(6).clip(1) - 1, np.arange(4)))
    found = etude.edit(job_with(chain), "fuse chain=aten::silu,aten::mul,aten::add").trace(0)
    assert [found.text("name", row) for row in range(3)] == ["aten::mm", "silu+mul+add", "aten::mm"]
    assert found.flops.tolist() == [1000, 3000, 1000]
    assert found.tensor_bytes.tolist() == [4000, 3 * 4000 - 2 * 2 * 2000, 4000]  # two results of 1000 bf16 numbers
    assert found.data.tolist() == [0, 1]


def test_fuse_stops_where_a_result_has_two_readers():
    columns = elementwise("aten::silu", "aten::mul", "aten::add")
    fork = build_trace(columns, data=(np.array([0, 0, 1, 2]), np.array([0, 0])))
    assert len(etude.edit(job_with(fork), "fuse").trace(0)) == 3


def test_fuse_that_finds_no_chain_lists_those_that_there_are():
    job = generate(Model.from_dict(SMALL), Plan.from_dict({"gpus": 1, "global_batch": 1})).job
    (note,) = apply_edits(job, ["fuse chain=norm,activation"]).notes  # a product is between them
    assert "no chain of norm, activation was found" in note
    assert "chain=elementwise,norm" in note
    assert len(etude.edit(job, "fuse chain=elementwise,norm").trace(0)) < len(job.trace(0))
    alone = job_with(build_trace(elementwise("aten::mm", "aten::silu"), data=(np.array([0, 0, 1]), np.array([0]))))
    (note,) = apply_edits(alone, ["fuse"]).notes
    assert "and there is no chain of other operators" in note


def test_fused_operators_are_launched_once():
    plan = {"gpus": 1, "global_batch": 1, "host": "5us"}
    job = generate(Model.from_dict(SMALL), Plan.from_dict(plan)).job
    fused = etude.edit(job, "fuse").trace(0)
    before, after = job.trace(0), fused
    gone = int((before.cpu == 0).sum() - (after.cpu == 0).sum())
    assert gone > 0
    assert int((before.cpu == 1).sum() - (after.cpu == 1).sum()) == gone


def test_fuse_never_makes_a_chain_longer():
    columns = elementwise("aten::silu", "aten::mul", "aten::add") | {"duration_ns": [100, 200, 300]}
    chain = job_with(build_trace(columns, data=(np.array([0, 0, 1, 2]), np.array([0, 1]))))
    # 600 ns for 12000 bytes; 4000 of them are left
    assert takes(chain, "fuse") == 200


def test_merge_is_one_call_of_all_bytes():
    job = calls(1000, 2000, 3000, 500)
    assert etude.edit(job, "merge s=3").trace(1).in_bytes.tolist() == [6000, 500]
    assert takes(job, "merge s=4") == takes(calls(6500))
    assert etude.edit(job, "merge s=2 bytes_each=99B").trace(0).in_bytes.tolist() == [99, 99]


def test_merge_wins_where_latency_rules():
    # a ring of two takes two steps of 10 ns and all its bytes: four calls of 8 bytes pay the steps four times
    assert takes(calls(8, 8, 8, 8), "merge s=4") == takes(calls(32)) < takes(calls(8, 8, 8, 8))


def test_merged_calls_wait_for_the_last_of_their_inputs():
    # 100 + 100 + 100 ns of compute, then one call; unmerged, two calls hide behind compute
    merged = takes(calls(50, 50, 50, between=100), "merge s=3")
    assert merged == 300 + takes(calls(150))


def test_merge_is_refused_where_one_call_needs_the_result_of_another():
    builders = []
    for _ in range(2):
        b = TraceBuilder()
        b.add(Kind.COLL, "first", collective=Collective.ALL_REDUCE, in_bytes=8, group="dp")
        b.add(Kind.COMP, "between", data=[0], duration_ns=1)
        b.add(Kind.COLL, "second", data=[1], collective=Collective.ALL_REDUCE, in_bytes=8, group="dp")
        builders.append(b)
    with pytest.raises(CycleError, match="would wait for one another"):
        etude.edit(job_of("chain", builders, {"dp": [0, 1]}), "merge s=2")


# -- split, chunk, rounds ----------------------------------------------------------------------------------------------


def test_split_conserves_bytes_and_pays_every_start():
    job = calls(1001)
    found = etude.edit(job, "split into=4")
    assert found.trace(0).in_bytes.tolist() == [251, 250, 250, 250]
    assert takes(job, "split into=4") == takes(calls(251)) + 3 * takes(calls(250))


def test_split_compute_conserves_work_and_time():
    columns = elementwise("aten::silu") | {"duration_ns": [101]}
    found = etude.edit(job_with(build_trace(columns)), "split kind=compute into=3").trace(0)
    assert found.duration_ns.tolist() == [34, 34, 33]
    assert found.flops.tolist() == [334, 333, 333]
    assert found.tensor_bytes.sum() == 4000


def test_chunks_are_no_larger_than_asked():
    found = etude.edit(calls(1000, 10, 300), "chunk size=300B").trace(0)
    assert found.in_bytes.tolist() == [250] * 4 + [10, 300]


def test_rounds_pay_round_trips():
    b = TraceBuilder()
    b.add(Kind.COMP, "layer", duration_ns=100)
    b.add(Kind.COMP, "next", data=[0], duration_ns=7)
    job = job_of("parties", [b, b])
    # 3 x 100 ns; two rounds of a request and a response of 20 bytes: 10 + 20 ns each
    assert takes(job, "rounds op=layer k=2 message=40B factor=3") == 300 + 2 * (20 + 40) + 7


def test_rounds_of_two_parties_are_messages():
    b = TraceBuilder()
    b.add(Kind.COMP, "layer", duration_ns=100)
    found = etude.edit(job_of("parties", [b, b]), "rounds k=2 message=40B")
    kinds = [found.trace(rank).kind.tolist() for rank in (0, 1)]
    assert kinds[0] == [Kind.COMP, Kind.SEND, Kind.RECV, Kind.SEND, Kind.RECV]
    assert kinds[1] == [Kind.COMP, Kind.RECV, Kind.SEND, Kind.RECV, Kind.SEND]
    assert [found.peer_slots(rank).tolist() for rank in (0, 1)] == [[1], [0]]
    assert sum(int(t.in_bytes[t.kind == Kind.SEND].sum()) for t in map(found.trace, (0, 1))) == 2 * 40
    three = etude.edit(job_of("parties", [b, b, b]), "rounds k=1 message=40B")
    assert three.trace(2).kind.tolist() == [Kind.COMP, Kind.COLL, Kind.COLL]


def test_rounds_of_pairs_are_between_the_members_of_each():
    builders = []
    for rank in range(4):
        b = TraceBuilder()
        b.add(Kind.COMP, "layer", duration_ns=100)
        b.add(Kind.COLL, "c", data=[0], collective=Collective.ALL_REDUCE, in_bytes=8, group=f"tp.{rank % 2}")
        builders.append(b)
    job = job_of("pairs", builders, {"tp.0": [0, 2], "tp.1": [1, 3]})
    job = job.replace(traces=tuple(t.replace(group_slots=("tp",)) for t in job.traces))
    text, four = "rounds k=1 message=40B over=tp", one_level("switch", 4)
    found = etude.edit(job, text)
    assert [found.peer_slots(rank).tolist() for rank in range(4)] == [[2], [3], [0], [1]]
    assert takes(job, text, on=four) == 2 * (10 + 20) + takes(job, on=four)
    assert etude.diff(etude.edit(etude.extend.fold(job), text), found) is None


def test_a_message_is_the_first_of_its_rounds():
    a, b = TraceBuilder(), TraceBuilder()
    a.add(Kind.SEND, "s", dst=1, tag=3, in_bytes=100)
    b.add(Kind.RECV, "r", src=0, tag=3, in_bytes=100)
    job = job_of("one", [a, b])
    assert etude.diff(etude.edit(job, "rounds kind=message k=1 message=40B"), job) is None
    # 10 + 100, then twice an answer and a request of 20 bytes
    assert takes(job, "rounds kind=message k=3 message=40B") == 110 + 2 * (30 + 30)


# -- order -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pipeline() -> Job:
    return generate(Model.from_dict(SMALL), Plan.from_dict({"gpus": 4, "pp": 4, "global_batch": 8})).job


PIPE = one_level("switch", 4, gbyte_per_s=100.0, latency_ns=1.0)


def test_a_relaxed_job_that_follows_the_recorded_order_is_the_original(pipeline: Job):
    relaxed = etude.edit(pipeline, "relax")
    cut = [len(a.ctrl) - len(b.ctrl) for a, b in zip(pipeline.traces, relaxed.traces, strict=True)]
    assert min(cut) > 0
    assert all((b.ctrl_why[b.ctrl_why != 0] == Why.PROGRAM).all() for b in relaxed.traces)
    original = etude.simulate(pipeline, PIPE, policy="recorded")
    again = etude.simulate(relaxed, PIPE, policy="recorded")
    assert again.makespan_ns == original.makespan_ns
    for rank in range(4):
        assert (again.timing.block(rank)[0] == original.timing.block(rank)[0]).all()


def test_passes_vary_together(pipeline: Job):
    """One factor for each micro-batch and phase of a rank, and the same one after an edit."""
    plain = etude.simulate(pipeline, PIPE)
    one = etude.simulate(pipeline, PIPE, jitter={"action": 0.5}, seed=3)
    other = etude.simulate(etude.edit(pipeline, "relax"), PIPE, jitter={"action": 0.5}, seed=3)
    for rank in range(4):
        trace = pipeline.trace(rank)
        work = np.flatnonzero((trace.kind == Kind.COMP) & (trace.micro_batch != UNKNOWN))
        times = [(r.timing.block(rank)[1] - r.timing.block(rank)[0])[work] for r in (plain, one, other)]
        phases, _ = trace.coded("phase", work)
        ratio = times[1] / np.maximum(times[0], 1)
        for key in set(zip(trace.micro_batch[work].tolist(), phases.tolist(), strict=True)):
            mine = (trace.micro_batch[work] == key[0]) & (phases == key[1]) & (times[0] > 200)
            assert np.ptp(ratio[mine]) < 0.01
        assert (times[1] == times[2]).all()
        assert np.ptp(ratio[times[0] > 200]) > 0.1


def test_noise_of_a_node_is_the_same_after_an_edit_beside_it(pipeline: Job):
    options = {"jitter": {"compute": 0.3}, "seed": 5}
    before = etude.simulate(pipeline, PIPE, **options)
    changed = etude.edit(pipeline, "compress kind=message ratio=2 encode=1GB/s decode=1GB/s")
    after = etude.simulate(changed, PIPE, **options)
    for rank in range(4):
        old, new = pipeline.trace(rank), changed.trace(rank)
        at = np.searchsorted(np.sort(new.source_id), old.source_id)
        rows = np.argsort(new.source_id)[at]
        work = old.kind == Kind.COMP
        lasts = [(r.timing.block(rank)[1] - r.timing.block(rank)[0]) for r in (before, after)]
        assert (lasts[0][work] == lasts[1][rows[work]]).all()


def test_recompute_repeats_forward_work_before_its_backward_pass(pipeline: Job):
    again = etude.edit(pipeline, "recompute module=*ffn*")
    for rank in range(4):
        old, new = pipeline.trace(rank), again.trace(rank)
        codes, words = old.coded("phase")
        forward = codes == words.index("forward")
        modules, paths = old.coded("module")
        ffn = np.array(["ffn" in path for path in paths] + [False])[modules]
        wanted = int(old.flops[forward & ffn & (old.kind == Kind.COMP)].sum())
        assert int(new.flops[new.flops != UNKNOWN].sum() - old.flops[old.flops != UNKNOWN].sum()) == wanted > 0
    assert takes(again, on=PIPE) > takes(pipeline, on=PIPE)


def test_overlap_gives_calls_a_stream_of_their_own():
    builders = []
    for _ in range(2):
        b = TraceBuilder()
        b.add(Kind.COMP, "work", duration_ns=500, stream=7, cpu=0)
        b.add(Kind.COLL, "call", collective=Collective.ALL_REDUCE, in_bytes=400, group="dp", stream=7, cpu=0)
        builders.append(b)
    job = job_of("serial", builders, {"dp": [0, 1]})
    alone = takes(calls(400))
    assert takes(job) == 500 + alone
    assert takes(job, "overlap stream=30") == max(500, alone)


def test_one_sided_calls_are_announced():
    job = calls(1000, kind=Collective.ALL_TO_ALL)
    found = etude.edit(job, "one_sided control=8B").trace(0)
    assert found.in_bytes.tolist() == [16, 1000]
    assert takes(job, "one_sided control=8B") == takes(job) + takes(calls(16, kind=Collective.ALL_TO_ALL))


# -- data types, ranks -------------------------------------------------------------------------------------------------


def test_a_narrower_type_moves_fewer_bytes_and_has_another_peak():
    columns = elementwise("aten::add", "aten::add") | {"in_types": ["['Tensor(c10::BFloat16)']", "['Tensor(float)']"]}
    found = etude.edit(job_with(build_trace(columns)), "dtype to=fp8 kind=compute").trace(0)
    assert found.tensor_bytes.tolist() == [2000, 1000]
    assert found.flops.tolist() == [1000, 1000]
    assert found.text("in_types", 0) == "['Tensor(c10::Float8_e4m3fn)']"


def test_a_time_that_is_known_changes_with_the_type_as_the_roofline_does():
    """All bytes, no products: half of them take half the time, whatever it was that was recorded."""
    columns = elementwise("aten::add", shape="[[1000000000]]") | {
        "tensor_bytes": [4_000_000_000],
        "duration_ns": [9_000_000],
    }
    job = job_with(build_trace(columns))
    assert etude.edit(job, "dtype to=fp8 op=aten::add").trace(0).duration_ns.tolist() == [UNKNOWN]
    found = etude.edit(job, "dtype to=fp8 op=aten::add", system=open_system("dgx-h100")).trace(0)
    assert found.duration_ns[0] == pytest.approx(4_500_000, rel=0.02)


def test_eight_bits_are_for_products_of_linear_layers_unless_more_is_named():
    """What a generated job of fp8 has in 8 bits is what the edit changes in one of bf16: not the head, the router,
    attention, norms, or the optimizer."""
    model = Model.from_dict({**SMALL, "experts": 4, "top_k": 2, "expert_ffn": 64})
    plain, recipe = (generate(model, Plan.from_dict({"gpus": 2, "precision": p})).job for p in ("bf16", "fp8"))

    def narrow(trace: Trace) -> Counter[tuple[str, str]]:
        rows = [row for row in range(len(trace)) if "Float8" in (trace.text("in_types", row) or "")]
        return Counter((str(trace.text("name", row)), str(trace.text("module", row))) for row in rows)

    found = apply_edits(plain, ["dtype to=fp8"])
    assert narrow(found.job.trace(0)) == Counter(
        {key: n for key, n in narrow(recipe.trace(0)).items() if "mm" in key[0]}
    )
    assert any("attention 16" in note and "kind=compute selects them too" in note for note in found.notes)
    assert found.steps[0].nodes < apply_edits(plain, ["dtype to=fp8 kind=compute"]).steps[0].nodes
    heads = apply_edits(plain, ["dtype to=fp8 op=aten::mm module=head.*"])
    assert narrow(heads.job.trace(0)).keys() == {("aten::mm", "head.logits")}
    assert not heads.notes


def test_scale_is_the_larger_generated_job():
    """Copies of a data-parallel job are what generating it larger gives: bytes, groups and times."""
    model = Model.from_dict(SMALL)
    for more in ({"zero": 0}, {"zero": 3}, {"zero": 1, "tp": 2}):
        tp = more.get("tp", 1)
        plan = {**more, "overlap_grads": True}
        small = generate(model, Plan.from_dict({**plan, "gpus": 2 * tp, "global_batch": 2})).job
        large = generate(model, Plan.from_dict({**plan, "gpus": 4 * tp, "global_batch": 4})).job
        scaled = etude.edit(small, "scale axis=dp to=4")
        assert scaled.world_size == large.world_size
        assert sorted(len(scaled.groups.ranks(g)) for g in range(len(scaled.groups))) == sorted(
            len(large.groups.ranks(g)) for g in range(len(large.groups))
        )
        ours, theirs = scaled.trace(0), large.trace(0)
        mine, wanted = (t.in_bytes[t.kind == Kind.COLL] for t in (ours, theirs))
        assert np.abs(mine - wanted).max() <= 8  # parts are rounded up
        on = one_level("switch", 4 * tp)
        # without compute: the update of sharded weights stays that of the smaller job
        assert takes(scaled, "drop", on=on) == pytest.approx(takes(large, "drop", on=on), rel=1e-3)


def test_scale_says_what_it_cannot_do(pipeline: Job):
    for text, problem in (
        ("scale axis=dp to=3", "not a multiple"), ("scale axis=world to=6", "not a multiple"),
        ("scale axis=world to=8 kind=compute", "takes no selector"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=problem):
            etude.edit(pipeline, text)


def test_a_recorded_pair_on_four_ranks_moves_the_bytes_of_four_that_were_recorded(shared: Path, tmp_path: Path):
    """The same program ran on two and on four processes: scaled, the former says what the latter sent."""
    jobs = []
    for ranks in (2, 4):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        for file in (shared / "traces" / "torch_cpu").glob(f"ddp_{ranks}p.rank*"):
            (folder / file.name).symlink_to(file)
        jobs.append(etude.open(folder))
    scaled = etude.edit(jobs[0], "scale axis=dp to=4")  # its one group has no such name, but is all that there is
    assert etude.diff(scaled, etude.edit(jobs[0], "scale axis=world to=4")) is None
    for rank in range(4):
        sent = [(t.collective[t.kind == Kind.COLL].tolist(), t.in_bytes[t.kind == Kind.COLL].tolist())
                for t in (scaled.trace(rank), jobs[1].trace(rank))]  # fmt: skip
        assert sent[0] == sent[1]
    assert scaled.groups.ranks(0).tolist() == [0, 1, 2, 3]
    assert etude.check(scaled) == etude.check(jobs[0])
    on = one_level("switch", 4)
    times = [etude.simulate(job, on).makespan_ns / 1e6 for job in (scaled, jobs[1])]
    print(f"scaled {times[0]:.1f} ms, recorded on four {times[1]:.1f} ms, both on the same toy system")


@pytest.mark.parametrize("network", ["analytic", "flow"])
def test_noise_of_a_call_is_the_same_where_others_come_or_go(network: str):
    options = {"jitter": {"collective": 0.3, "p2p": 0.4}, "seed": 7, "network": network}
    job = calls(1000, 3000, 1000, 5000, between=20_000)
    before = etude.simulate(job, TWO, **options)
    for text in ("one_sided control=8B bytes=3kB..", "split into=2 bytes=..1kB", "drop kind=collective bytes=1kB"):
        changed = etude.edit(job, text)
        assert len(changed.trace(0)) != len(job.trace(0))
        after = etude.simulate(changed, TWO, **options)
        there = dict(zip(changed.trace(0).source_id.tolist(), range(len(changed.trace(0))), strict=True))
        same = 0
        for row in np.flatnonzero(job.trace(0).kind == Kind.COLL).tolist():
            new = there.get(int(job.trace(0).source_id[row]))
            if new is not None and changed.trace(0).in_bytes[new] == job.trace(0).in_bytes[row]:
                one, other = (
                    r.timing.block(0)[1][n] - r.timing.block(0)[0][n] for r, n in ((before, row), (after, new))
                )
                assert one == other, text
                same += 1
        assert same >= 2
    lasts = [int(before.timing.block(0)[1][row] - before.timing.block(0)[0][row]) for row in (1, 5)]
    assert lasts[0] != lasts[1]  # two calls of one size: a draw each


def test_noise_of_calls_has_the_mean_and_the_spread_that_are_asked_for():
    spread = 0.2
    job = calls(*[100_000] * 4000)
    run = etude.simulate(job, TWO, jitter={"collective": spread}, seed=1)
    alone = takes(calls(100_000))
    lasts = (run.timing.block(0)[1] - run.timing.block(0)[0]) / alone
    assert lasts.mean() == pytest.approx(1, abs=0.02)
    assert np.log(lasts).std() == pytest.approx(spread, rel=0.05)
    assert abs(np.corrcoef(lasts[:-1], lasts[1:])[0, 1]) < 0.06
    other = etude.simulate(job, TWO, jitter={"collective": spread}, seed=2)
    assert abs(np.corrcoef(lasts, (other.timing.block(0)[1] - other.timing.block(0)[0]))[0, 1]) < 0.06
