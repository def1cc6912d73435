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
from etude.cli import main
from etude.cost.traces import ops_of
from etude.errors import FormatError, UsageError
from etude.replay import coverage, plan
from etude.replay.compiled import compiled_sources
from etude.replay.program import CommKind, Fill, Origin, StepKind

SAMPLE = Path(str(files("etude") / "sample"))


def kinds(program) -> list[str]:
    return [StepKind(k).name for k in program.steps.kind]


def test_the_sample_is_covered_by_its_own_operators():
    program = plan(etude.open(SAMPLE))[0]
    found = coverage(program)
    assert found["time"] == 1.0 and found["count"] == 1.0 and found["stand_ins"] == []
    assert program.about["steps"] == 2 and kinds(program).count("MARK") == 2
    names = {op.partition(".")[0] for op in program.ops}
    assert "aten::native_layer_norm" in names and "aten::layer_norm" not in names


def test_time_of_the_host_is_what_no_call_covers():
    job = etude.open(SAMPLE)
    program = plan(job)[0]
    assert job.timing is not None
    start, end = job.timing.block(0)
    calls = program.steps.node[program.steps.kind == StepKind.CALL]
    spans = sorted((int(start[node]), int(end[node])) for node in calls)
    last = max(b for _, b in spans)
    covered = [False] * ((last - spans[0][0]) // 1000 + 1)  # by microseconds
    for a, b in spans:
        for at in range((a - spans[0][0]) // 1000, (b - spans[0][0]) // 1000):
            covered[at] = True
    host = program.steps.row[program.steps.kind == StepKind.HOST]
    assert (host > 0).all()
    before = int(host[0])  # from the beginning of the step to its first call
    assert abs(int(host.sum()) - before - 1000 * covered.count(False)) <= 1000 * 2 * len(spans)
    assert int(host.sum()) < 2 * program.about["recorded_step_ns"]


def test_indices_are_below_the_rows_of_their_table():
    program = plan(etude.open(SAMPLE))[0]
    found = program.storages
    whole = np.flatnonzero(found.fill == Fill.INTEGERS)
    assert len(whole) and (found.origin[whole] == Origin.OUTSIDE).all()
    tables = [
        program.layouts.shape[int(program.slots.layout[program.calls.inputs[row][0]])][0]
        for row in range(len(program.calls.op))
        if program.ops[int(program.calls.op[row])] == "aten::embedding"
    ]
    assert tables and set(found.high[whole].tolist()) & set(tables)


def test_every_slot_is_there_before_it_is_read():
    program = plan(etude.open(SAMPLE))[0]
    there = set(np.flatnonzero(program.storages.origin[program.slots.storage] == Origin.OUTSIDE).tolist())
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
        gzip.compress(json.dumps(dict.fromkeys(graphs, "code")).encode())
    )
    program = plan(job, [0], recording=tmp_path)[0]
    assert len(graphs) == 2 and program.about["compiled"] == dict.fromkeys(graphs, "code")
    found = coverage(program)
    assert found["time"] == 1.0 and found["stand_ins"] == []
    assert not any(op.startswith(("aten::mm", "aten::addmm", "aten::_scaled")) for op in program.ops)
    assert {op for op in program.ops if op.startswith("compiled::")} == {f"compiled::{key}" for key in graphs}


def test_code_of_compiled_graphs_is_found_beside_the_recording(tmp_path: Path):
    (tmp_path / "trace.rank0.compiled.json.gz").write_bytes(gzip.compress(b'{"a": "code of a"}'))
    (tmp_path / "trace.rank1.compiled.json.gz").write_bytes(gzip.compress(b'{"b": "code of b"}'))
    assert compiled_sources(tmp_path) == {"a": "code of a", "b": "code of b"}
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
    code = "import sys, etude, etude.replay as r\nr.plan(etude.open(sys.argv[1]))\nprint('torch' in sys.modules)"
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
