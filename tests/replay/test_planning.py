"""Plans of real recordings, without PyTorch."""

import gzip
import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.base.errors import FormatError, UsageError
from etude.capture.ingest.runs import WantedTimes
from etude.cost.traces import ops_of
from etude.model.build import TraceBuilder
from etude.model.schema import Kind
from etude.run.replay import coverage, plan
from etude.run.replay.between import Busy, pauses_before, pauses_ns, python_ns, unit_ns, waited, without_waits
from etude.run.replay.compiled import compiled_sources
from etude.run.replay.host_time import counted, host_intervals, plain_ns
from etude.run.replay.light import light_clocks, light_events
from etude.run.replay.program import CommKind, Fill, Program, StepKind, StorageOrigin
from etude.surface.cli import main
from recorded import device_json, event, host_json, kernel, launch, node, op

SAMPLE = Path(str(files("etude") / "capture" / "sample"))


def kinds(program) -> list[str]:
    return [StepKind(k).name for k in program.steps.kind]


def test_the_sample_is_covered_by_its_own_operators():
    program = plan(etude.open(SAMPLE))[0]
    found = coverage(program)
    assert found["time"] == 1.0 and found["count"] == 1.0 and found["stand_ins"] == []
    assert program.about["steps"] == 2 and kinds(program).count("MARK") == 2
    names = {op.partition(".")[0] for op in program.ops}
    assert "aten::native_layer_norm" in names and "aten::layer_norm" not in names


def test_time_of_the_host_is_that_between_calls_without_waits_for_the_device():
    program = plan(etude.open(SAMPLE, times=WantedTimes(as_recorded=True)))[0]
    ends = np.flatnonzero(program.steps.kind == StepKind.END)
    assert len(ends) == 2 and ends[-1] == len(program) - 1
    first, second = program.steps.host_ns[: ends[0] + 1], program.steps.host_ns[ends[0] + 1 :]
    # Steps alike, but for what stands between them.
    assert first.sum() == pytest.approx(second.sum(), rel=0.02) and first.sum() > 0
    about = program.about["host"]
    assert about["events"] > len(program.calls.op) > about["calls"] > 0
    assert int(first.sum()) < program.about["recorded_step_ns"] / 2  # it was recorded under a profiler
    program = plan(etude.open(SAMPLE, times=WantedTimes(estimate=False)))[0]
    first = program.steps.host_ns[: ends[0] + 1]
    # The light window has the program's own times: the host sets the pace, and waits for the device at the step's end.
    assert 0.75 < int(first.sum()) / program.about["recorded_step_ns"] < 1


def test_time_of_the_host_without_the_profiler_by_hand():
    moments, events, calls = np.array([0, 50, 50, 200]), np.array([190, 10, 20, 60]), np.array([70])
    assert counted(moments, events).tolist() == [0, 2, 0, 2] and counted(moments, calls).tolist() == [0, 0, 0, 1]
    ms = 1_000_000
    usual = np.array([0, 40_000, 0, 60_000])  # 25 us an event
    given = (np.array([0, 2, 0, 2]), np.array([0, 0, 0, 1]), np.array([0, 1, 0, 1]))
    assert plain_ns(usual, *given).tolist() == [0, 6320, 0, 10_960]  # 3160 ns an event, 4640 ns a call
    # 12.5 us an event: 0.5 ** 0.3 = 0.8123. 100 us: 2 ** 0.3 = 1.2311, and twice as slow beyond that.
    assert plain_ns(np.array([0, 25_000, 0, 25_000]), *given).tolist() == pytest.approx([0, 5133, 0, 8902], abs=1)
    assert plain_ns(np.array([0, 200_000, 0, 200_000]), *given).tolist() == pytest.approx([0, 15_562, 0, 26_987], abs=1)
    # What a call with one tensor takes above 1.02 ms is time of the program; it is no sign of a slow host.
    assert plain_ns(np.array([0, 50_000, 0, 5 * ms]), *given).tolist() == [0, 6320, 0, 10_960 + 3_980_000]


def test_time_between_operators_by_hand():
    # Operators at 10-30 and 20-40, which are one piece, and at 60-70.
    busy = Busy(np.array([20, 60, 10]), np.array([40, 70, 30]))
    moments = np.array([0, 10, 35, 40, 55, 60, 65, 100])
    # Free: 0-10, 40-60, 70-.
    assert np.diff(busy.free_ns(moments)).tolist() == [10, 0, 0, 15, 5, 0, 30]
    assert busy.has(moments).tolist() == [False, True, True, False, False, True, True, False]
    assert Busy(np.zeros(0, np.int64), np.zeros(0, np.int64)).free_ns(np.array([5, 9])).tolist() == [5, 9]


def test_a_wait_for_others_is_no_time_between_operators():
    busy = Busy(np.array([10, 60]), np.array([40, 70]))
    # Ended at 50, needed by the operator at 60: the host waited from 40 to 50, and Python is what follows.
    found, over = waited(busy, np.array([50]), np.array([60]))
    assert over.tolist() == [50] and np.diff(found.free_ns(np.array([40, 50, 60]))).tolist() == [0, 10]
    # Ended at 50, needed at 80, after another operator: nobody waited. Ended within an operator: nobody waited either.
    for ended in (50, 65):
        found, over = waited(busy, np.array([ended]), np.array([80]))
        assert over.tolist() == [80] and np.diff(found.free_ns(np.array([40, 60]))).tolist() == [20]


def test_what_the_profiler_adds_to_a_gap_is_taken_off():
    # An event at 10 with events at 14 and 30 inside, one at 50 with one at 58 inside; another that the observer lacks.
    start, parent = np.array([10, 14, 30, 50, 58, 51]), np.array([-1, 0, 0, -1, 3, 3])
    assert unit_ns(parent, start, np.array([True] * 5 + [False])) == 5.0  # a quarter of the way from 4 to 8
    assert unit_ns(np.array([-1]), np.array([3]), np.array([True])) == 0.0
    us = 1000
    free, events = np.array([0, 150, 99, 200, 2000]) * us, np.array([0, 0, 0, 2, 0])
    # With 10 us: 100 off a gap and 10 off for each event in it; 2 ms is not believed. 130 of 449 are no 30%.
    assert pauses_ns(free, events, 10.0 * us).tolist() == [0] * 5
    free[1] = 160 * us  # 140 of 459 are
    assert pauses_ns(free, events, 10.0 * us).tolist() == [0, 60 * us, 0, 80 * us, 0]


def test_python_between_operators_from_light_steps_by_hand():
    calls, recorded = np.array([False, True, True, True]), np.array([0, 90, 95, 30])
    light = [(np.array([0, 20, 20, 99]), np.array([0, 0, 3, 0])), (np.array([0, 40, 22, 99]), np.array([0, 0, 3, 0]))]
    # An event costs 4: 16 and 36 before the first call; 4 and 6 with three events more; 99 is more than was recorded.
    assert python_ns(recorded, light, calls, np.array([4.0, 4.0]), np.array([9.0, 9.0])).tolist() == [0, 16, 4, 26]
    # Passes took 6 and 18 ns: 16 and 36 are 32 and 24 with one of 12.
    assert python_ns(recorded, light, calls, np.array([4.0, 4.0]), np.array([6.0, 18.0])).tolist() == [0, 24, 4, 17]


def test_pauses_make_up_for_calls_that_the_player_makes_slowly():
    # A call costs 30 or 20: ahead by 70, which is played; then behind by 20, ahead by 20 (too little), and by 50.
    wanted, own = np.array([100.0, 10, 70, 50, 0]), np.array([30.0, 30, 30, 20, 30])
    assert pauses_before(wanted, own, 50.0, 2.0).tolist() == [68, 0, 0, 48, 0]


def test_gaps_are_no_longer_than_the_thread_worked():
    gaps, waits = np.array([5, 40, 10, 100, 7]), np.array([False, True, True, False, False])
    assert without_waits(gaps, waits, 200.0).tolist() == gaps.tolist()
    assert without_waits(gaps, waits, 132.0).tolist() == [5, 10, 10, 100, 7]  # 30 less: where it waited, the longest
    assert without_waits(gaps, waits, 124.0).tolist() == [5, 6, 6, 100, 7]
    assert without_waits(gaps, waits, 32.0).tolist() == [5, 0, 0, 20, 7]  # more than there is: then the longest
    assert without_waits(gaps, waits, -1.0).tolist() == [0] * 5


def test_moments_of_a_window_are_those_of_the_same_events_in_a_light_step(tmp_path: Path):
    # The window at 1000: a step with two operators, and the same 10 times as fast; the backend ends by itself.
    b = TraceBuilder()
    for name in ("ProfilerStep#7", "aten::mm", "aten::add"):
        b.add(Kind.COMP, name, cpu=1, thread=1, step=7)
    b.add(Kind.COLL, "gloo:all_reduce", cpu=1, thread=2, step=7)
    trace = b.build()
    start, end = np.array([1000, 1100, 1500, 1200]), np.array([2000, 1400, 1600, 1900])
    told = {
        "names": ["ProfilerStep#5", "aten::mm", "aten::add", "gloo:all_reduce"], "name": [0, 1, 3, 2],
        "thread": [4, 4, 5, 4], "start_ns": [0, 10, 15, 50], "end_ns": [100, 40, 77, 60], "event_ns": [2.5],
        "pass_ns": [9.5], "node_ns": 1.5, "cpu_ns": [88],
    }  # fmt: skip
    file = tmp_path / "trace.rank3.light.json.gz"
    file.write_bytes(gzip.compress(json.dumps(told).encode()))
    light = light_events(tmp_path)[3]
    events = np.array([True, True, True, False])
    ((clock,), why) = light_clocks(trace, events, start, end, light)
    assert why == ""
    assert clock(np.array([1000, 1100, 1250, 1400, 1450, 1500, 1600, 2000])).tolist() == [
        0,
        10,
        25,
        40,
        45,
        50,
        60,
        100,
    ]
    assert clock.comm_end_ns == {3: 77} and (clock.step, clock.worked_ns) == (0, 88)
    clocks, why = light_clocks(trace, events & (np.arange(4) != 2), start, end, light)  # another program
    assert clocks == [] and why.startswith("the program did something else: event ")
    for broken in (b"{}", b"[", json.dumps(told | {"name": [9, 1, 3, 2]}).encode()):
        file.write_bytes(gzip.compress(broken))
        with pytest.raises(FormatError, match="light steps"):
            light_events(tmp_path)


def test_intervals_of_the_host_by_hand():
    mark, call, end = int(StepKind.MARK), int(StepKind.CALL), int(StepKind.END)
    kind = np.array([mark, call, int(StepKind.VIEW), call, end, mark, call, call, end])
    what = np.array([-1, 7, -1, 8, -1, -1, 7, 8, -1])
    moment = np.array([0, 30, -1, 50, 90, 90, 100, 190, 200])
    # 30, 20, 40 and 10, 90, 10: the lower ones
    assert host_intervals(kind, what, moment).tolist() == [0, 10, 0, 20, 10, 0, 10, 20, 10]
    what[7] = 9  # other calls: each as it was
    assert host_intervals(kind, what, moment).tolist() == [0, 30, 0, 20, 40, 0, 10, 90, 10]


def nccl(shared: Path, name: str, folder: Path) -> list[Program]:
    source = shared / "oracle" / "chakra_official" / "h200_nccl" / name
    for kind, ending in (("host", "et"), ("device", "kineto")):
        (folder / f"{name}.rank0.{ending}.json.gz").symlink_to(source / f"{kind}.0.json.gz")
    return plan(etude.open(folder), [0])


def by_hand(folder: Path, host: dict[str, object], device: dict[str, object]) -> Program:
    (folder / "hand.rank0.et.json").write_text(json.dumps(host))
    (folder / "hand.rank0.kineto.json").write_text(json.dumps(device))
    return plan(etude.open(folder))[0]


def test_a_kernel_of_triton_is_called_where_its_file_is_known_and_else_work_of_its_bytes(tmp_path: Path):
    floats, ids = [5, 6, 0, 1000, 4, "cuda:0"], [7, 8, 0, 250, 8, "cuda:0"]
    given = ([floats, ids, 1000, 0], [[1000], [250], [], []], ["Tensor(float)", "Tensor(long int)", "Int", "Int"])
    schema = "aten::neg_(Tensor(a!) self) -> Tensor(a!)"
    x = ([floats], [[1000]], ["Tensor(float)"])
    host = host_json(
        node(3, "aten::neg_", 2, 1, inputs=x, outputs=x, op_schema=schema),
        node(4, "triton_poi_fused_add_0", 2, 2, inputs=given, kernel_backend="triton", kernel_file="cabc.py"),
    )
    device = device_json(
        op("aten::neg_", 10, 8, 1), launch(12, 1), kernel("neg", 30, 5, 1, 1),
        op("triton_poi_fused_add_0", 20, 8, 2), launch(22, 2), kernel("triton_poi_fused_add_0", 36, 5, 2, 2),
    )  # fmt: skip
    program = by_hand(tmp_path, host, device)
    assert coverage(program)["stand_ins"] == [{"name": "triton_poi_fused_add_0", "count": 1}]
    assert program.stand_ins.size_bytes.tolist() == [4 * 1000 + 8 * 250]
    # With its file, which PyTorch's observer puts beside its own, it is called: its arguments without the stream.
    (tmp_path / "hand.rank0.et_resources").mkdir()
    (tmp_path / "hand.rank0.et_resources" / "cabc.py").write_text("code")
    job = etude.open(tmp_path)
    assert plan(job, recording=tmp_path)[0].about["code_left_out"]  # nobody has sealed it
    program = plan(job, recording=tmp_path / "hand", trust_code=True)[0]
    assert coverage(program) == {"time": 1.0, "count": 1.0, "stand_ins": []}
    at = program.ops.index("triton::triton_poi_fused_add_0@cabc.py")
    row = int(np.flatnonzero(program.calls.op == at)[0])
    assert json.loads(program.forms[int(program.calls.form[row])]) == [{"t": 0}, {"t": 1}, 1000]
    assert program.about["compiled"] == {"cabc.py": {"code": "code", "seal": ""}}


def test_two_streams_by_hand(tmp_path: Path):
    """neg on stream 7, a record there, a wait of stream 9, neg on stream 9."""
    schema = "aten::neg_(Tensor(a!) self) -> Tensor(a!)"
    x = ([[5, 6, 0, 1000, 4, "cuda:0"]], [[1000]], ["Tensor(float)"])
    names = range(1, 5)
    host = host_json(*(node(2 + k, "aten::neg_", 2, k, inputs=x, outputs=x, op_schema=schema) for k in names))
    calls = [
        event("cuda_runtime", "cudaEventRecord", 35, 1, correlation=11),
        event("cuda_runtime", "cudaStreamWaitEvent", 38, 1, correlation=12),
    ]
    device = device_json(
        *(part for k in names for part in (op("aten::neg_", 10 * k, 8, k), launch(10 * k + 2, k),
          kernel("neg", 100 * k, 50, k, k, stream=9 if k == 4 else 7))), *calls,
    )  # fmt: skip
    program = by_hand(tmp_path, host, device)
    wanted = (StepKind.CALL, StepKind.EVENT, StepKind.AWAIT)
    told = [(StepKind(k).name, int(s)) for k, s in zip(program.steps.kind, program.steps.stream, strict=True)
            if k in wanted]  # fmt: skip
    assert told == [*[("CALL", -1)] * 3, ("EVENT", -1), ("AWAIT", 9), ("CALL", 9)]


def test_streams_and_events_of_a_recording(shared: Path, tmp_path: Path):
    """A product on a stream of its own, in each of two steps: it waits for the main stream, and that for it."""
    program = nccl(shared, "sync", tmp_path)[0]
    names = [program.ops[int(op)] for op in program.calls.op]
    wanted = (StepKind.EVENT, StepKind.AWAIT)
    told = [
        (StepKind(kind).name, names[row] if kind == StepKind.CALL else row, stream)
        for kind, row, stream in zip(program.steps.kind, program.steps.row, program.steps.stream, strict=True)
        if kind in wanted or (kind == StepKind.CALL and stream != -1)
    ]
    assert told == [
        ("EVENT", 0, -1), ("AWAIT", 0, 13), ("CALL", "aten::matmul", 13), ("EVENT", 1, 13), ("AWAIT", 1, -1),
        ("EVENT", 2, -1), ("AWAIT", 2, 13), ("CALL", "aten::matmul", 13), ("EVENT", 3, 13), ("AWAIT", 3, -1),
    ]  # fmt: skip


def test_communication_is_issued_from_the_stream_that_it_waited_for(shared: Path, tmp_path: Path):
    """FSDP copies parameters on a stream of its own and gathers from there; gradients come from the main stream."""
    program = nccl(shared, "fsdp", tmp_path)[0]
    issued = [(CommKind(program.comms.kind[row]).name, stream) for kind, row, stream in zip(
        program.steps.kind, program.steps.row, program.steps.stream, strict=True) if kind == StepKind.COMM]  # fmt: skip
    assert set(issued) == {("ALL_GATHER", 17), ("REDUCE_SCATTER", -1)} and len(issued) == 16
    copies = [program.ops[int(program.calls.op[row])] for kind, row, stream in zip(
        program.steps.kind, program.steps.row, program.steps.stream, strict=True)
        if kind == StepKind.CALL and stream == 17]  # fmt: skip
    assert copies == ["aten::_foreach_copy_"] * 10


def test_indices_are_below_the_rows_of_their_table():
    program = plan(etude.open(SAMPLE))[0]
    found = program.storages
    whole = np.flatnonzero(found.fill == Fill.INTEGERS)
    assert len(whole) and (found.origin[whole] == StorageOrigin.OUTSIDE).all()
    tables = [
        program.layouts.shape[int(program.slots.layout[program.calls.inputs[row][0]])][0]
        for row in range(len(program.calls.op))
        if program.ops[int(program.calls.op[row])] == "aten::embedding"
    ]
    assert tables and set(found.high[whole].tolist()) & set(tables)


def test_every_slot_is_there_before_it_is_read():
    program = plan(etude.open(SAMPLE))[0]
    there = set(np.flatnonzero(program.storages.origin[program.slots.storage] == StorageOrigin.OUTSIDE).tolist())
    for kind, row in zip(program.steps.kind.tolist(), program.steps.row.tolist(), strict=True):
        if kind == StepKind.CALL:
            assert set(program.calls.inputs[row]) <= there
            there |= set(program.calls.outputs[row])
        elif kind == StepKind.VIEW:
            assert int(program.views.base[row]) in there
            there.add(int(program.views.slot[row]))


def test_waits_come_after_their_communication_and_all_are_waited_for(shared: Path):
    for name in ("ddp_2p", "fsdp2_2p", "tp_2p", "pp_gpipe_2p", "moe_2p"):
        for program in plan(etude.open(shared / "traces" / "torch_cpu" / name)):
            issued: set[int] = set()
            waited: set[int] = set()
            for kind, row in zip(program.steps.kind.tolist(), program.steps.row.tolist(), strict=True):
                if kind == StepKind.COMM:
                    issued.add(row)
                elif kind == StepKind.WAIT:
                    assert row in issued and row not in waited
                    waited.add(row)
            assert issued == waited == set(range(len(program.comms.kind)))


def test_communication_of_a_capture(shared: Path):
    program = plan(etude.open(shared / "traces" / "torch_cpu" / "ddp_2p"), [1])[0]
    assert program.about["rank"] == 1 and program.groups == ((0, 1),)
    assert program.comms.kind.tolist() == [CommKind.ALL_REDUCE] * 5
    assert program.comms.in_bytes.tolist() == [131072, 132864, 132352, 116224, 147968]


def test_ranks_of_one_program_call_the_same(shared: Path):
    """The public replayer took 341 operators on rank 0 and 308 on rank 1 of this step."""
    a, b = plan(etude.open(shared / "traces" / "torch_cpu" / "ddp_2p"))
    called = [[p.ops[int(p.calls.op[r])] for r in p.steps.row[p.steps.kind == StepKind.CALL]] for p in (a, b)]
    assert called[0] == called[1]


def test_compiled_code_is_not_counted_as_covered(shared: Path):
    found = coverage(plan(etude.open(shared / "traces" / "torch_cpu" / "train_1p_compiled"))[0])
    assert found["stand_ins"] == [{"name": "compiled region", "count": 2}]
    assert 0.5 < found["time"] < 1


def test_compiled_code_that_is_known_is_one_call_in_place_of_all_inside(shared: Path, tmp_path: Path):
    job = etude.open(shared / "traces" / "torch_cpu" / "train_1p_compiled")
    graphs = sorted({name.split()[3] for name in job.trace(0).coded("name")[1] if "CompiledFxGraph" in name})
    (tmp_path / "t.rank0.compiled.json.gz").write_bytes(
        gzip.compress(json.dumps({key: {"code": "code", "seal": "of another"} for key in graphs}).encode())
    )
    stranger = plan(job, [0], recording=tmp_path)[0]
    assert stranger.about["code_left_out"] and "compiled" not in stranger.about and coverage(stranger)["time"] < 1
    program = plan(job, [0], recording=tmp_path, trust_code=True)[0]
    assert len(graphs) == 2 and set(program.about["compiled"]) == set(graphs)
    found = coverage(program)
    assert found["time"] == 1.0 and found["stand_ins"] == []
    assert not any(op.startswith(("aten::mm", "aten::addmm", "aten::_scaled")) for op in program.ops)
    assert {op for op in program.ops if op.startswith("compiled::")} == {f"compiled::{key}" for key in graphs}


def test_code_of_compiled_graphs_is_found_beside_the_recording(tmp_path: Path):
    (tmp_path / "trace.rank0.compiled.json.gz").write_bytes(gzip.compress(b'{"a": {"code": "1", "seal": "s"}}'))
    (tmp_path / "trace.rank1.compiled.json.gz").write_bytes(gzip.compress(b'{"b": {"code": "2", "seal": "s"}}'))
    assert compiled_sources(tmp_path) == {"a": {"code": "1", "seal": "s"}, "b": {"code": "2", "seal": "s"}}
    assert compiled_sources(tmp_path / "other") == {}
    (tmp_path / "trace.rank2.compiled.json.gz").write_bytes(b"no code")
    with pytest.raises(FormatError, match=r"rank2\.compiled"):
        compiled_sources(tmp_path)


def test_a_generated_job_is_work_of_the_same_flops(tmp_path: Path):
    job = tmp_path / "job"
    asked = ["llama3-8b", "--gpus", "8", "--tp", "2", "--pp", "2", "--micro-batch", "1", "--global-batch", "4"]
    assert main(["generate", *asked, "-o", str(job)]) == 0
    opened = etude.open(job)
    program = plan(opened, [1])[0]
    trace = opened.trace(1)
    flops = trace.flops[(trace.kind == 5) & (trace.flops > 0)].sum()
    assert int(program.stand_ins.flops.sum()) == int(flops)
    assert len(program.comms.kind) == int(np.isin(trace.kind, (6, 7, 8)).sum()) > 0
    assert coverage(program)["time"] is None


def test_steps_of_an_anonymised_recording_are_told_apart(tmp_path: Path):
    assert main(["anonymise", str(SAMPLE), "-o", str(tmp_path / "job")]) == 0
    program = plan(etude.open(tmp_path / "job"))[0]
    assert program.about["steps"] == 2 and kinds(program).count("MARK") == 2
    assert "CALL" not in kinds(program) and len(program.stand_ins.kind)


def test_a_rank_that_is_not_there():
    with pytest.raises(UsageError, match="rank 5 is not in the job"):
        plan(etude.open(SAMPLE), [5])


def test_the_command_plans_without_playing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["replay", str(SAMPLE), "--plan", str(tmp_path / "plans")]) == 0
    assert [file.name for file in (tmp_path / "plans").iterdir()] == ["rank0.program"]
    assert "100.0%" in capsys.readouterr().out


def test_a_plan_needs_no_torch():
    code = "import sys, etude\nfrom etude.run.replay import plan\nplan(etude.open(sys.argv[1]))\n"
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(SAMPLE)], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_an_anonymised_recording_of_a_cpu_does_the_work_of_the_original(tmp_path: Path):
    assert main(["anonymise", str(SAMPLE), "-o", str(tmp_path / "hidden")]) == 0
    hidden = plan(etude.open(tmp_path / "hidden"))[0]
    shown, table = plan(etude.open(SAMPLE))[0], ops_of(etude.open(SAMPLE).trace(0))
    calls = shown.steps.node[shown.steps.kind == StepKind.CALL]
    assert not hidden.calls.op.size and hidden.about["steps"] == shown.about["steps"]
    flops, size = (int(np.maximum(column[calls], 0).sum()) for column in (table.flops, table.size_bytes))
    assert int(hidden.stand_ins.flops.sum()) == pytest.approx(flops, rel=0.001)
    assert int(hidden.stand_ins.size_bytes.sum()) == pytest.approx(size, rel=0.1)  # operators, or those inside them
