"""Playing, on the CPU: numbers come out right, memory is let go, what cannot be called is counted."""

import json
import re
import sys
import time
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import etude
from etude.base.errors import UsageError
from etude.base.pages import page_faults
from etude.capture.collect import torch as collect
from etude.run.replay import PlayerOptions, plan, play, play_together
from etude.run.replay.builder import ProgramBuilder
from etude.run.replay.program import CommKind, Fill, Program, StandInKind, StepKind, StorageOrigin
from etude.surface.cli import main
from later import TORCH, later

torch = later("torch", TORCH)
cuda_graph, own_cost = later("etude.run.replay.cuda_graph"), later("etude.run.replay.own_cost")
players = later("etude.run.replay.player")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def chain() -> tuple[Program, dict[str, int]]:
    """ones -> add -> a view of the sum -> multiply by itself."""
    b = ProgramBuilder()
    ones = b.storage(16, origin=StorageOrigin.OUTSIDE)
    b.fill(ones, Fill.ONES)
    x = b.slot(ones, "float32", [2, 2], [2, 1])
    made = b.storage(16)
    y, t = b.slot(made, "float32", [2, 2], [2, 1]), b.slot(made, "float32", [2, 2], [1, 2])
    z = b.slot(b.storage(16), "float32", [2, 2], [2, 1])
    b.mark(0)
    b.call("aten::add.Tensor", [{"t": 0}, {"t": 1}, 2], [x, x], [y])
    b.view(y, t)
    b.call("aten::mul.Tensor", [{"t": 0}, {"t": 1}], [t, y], [z])
    b.call("aten::copy_", [{"t": 0}, {"t": 1}, False], [x, z], [])
    return b.build(), {"x": x, "y": y, "z": z}


def test_numbers_flow_from_call_to_call_and_memory_is_let_go():
    program, slots = chain()
    player = players.Player(program, "cpu")
    player.prepare()
    player._values[slots["x"]].fill_(1)
    player.iteration()
    assert player._values[slots["x"]].tolist() == [[9.0, 9.0], [9.0, 9.0]]  # (1 + 2 * 1) squared
    assert player._values[slots["y"]] is None and player._values[slots["z"]] is None


def test_compiled_code_runs_on_arguments_of_its_own():
    code = "import torch\nran = []\ndef get_args():\n return [torch.ones(3)]\n"
    code += "def call(args):\n ran.append(args.pop().sum().item())\n torch.ran_compiled = ran\n"
    b = ProgramBuilder(source="recorded", compiled={"k": {"code": code, "seal": "of another"}})
    b.mark(0)
    b.call("compiled::k", [], [], [], work_ns=7)
    with pytest.raises(UsageError, match="not recorded on this machine"):
        play(b.build(), PlayerOptions(iterations=2, warmup=0, device="cpu"))
    assert not hasattr(torch, "ran_compiled")
    found = play(b.build(), PlayerOptions(iterations=2, warmup=0, device="cpu", trust_code=True))
    ran = vars(sys.modules["torch"]).pop("ran_compiled")
    assert ran == [3.0, 3.0, 3.0] and found["coverage"]["time"] == 1.0  # once to see that it works


def test_an_unknown_operator_is_a_counted_stand_in():
    b = ProgramBuilder(source="recorded")
    x = b.slot(b.storage(16, origin=StorageOrigin.OUTSIDE), "float32", [4])
    y, z = b.slot(b.storage(16), "float32", [4]), b.slot(b.storage(16), "float32", [4])
    b.call("aten::no_such_operator", [{"t": 0}], [x], [y], work_ns=30)
    b.call("aten::neg", [{"t": 0}], [y], [z], work_ns=10)
    found = play(b.build(), PlayerOptions(iterations=2, warmup=0, device="cpu"))
    (lost,) = found["coverage"]["stand_ins"]
    assert (lost["name"], lost["count"]) == ("aten::no_such_operator", 1) and "is not an operator" in lost["why"]
    assert found["coverage"]["time"] == 0.25 and found["coverage"]["count"] == 0.5


def test_a_result_whose_shape_depends_on_values_has_the_recorded_one():
    b = ProgramBuilder()
    x = b.slot(b.storage(16, origin=StorageOrigin.OUTSIDE), "float32", [4])
    at = b.slot(b.storage(16), "int64", [2, 1])
    back = b.slot(b.storage(16), "int64", [1, 2])
    different = b.slot(b.storage(12), "float32", [3])
    b.call("aten::nonzero", [{"t": 0}], [x], [at])  # is given two numbers that are not 0
    b.call("aten::t", [{"t": 0}], [at], [back])
    b.call("aten::_unique2", [{"t": 0}, True, False, False], [x], [different])  # nothing is known of its numbers
    player = players.Player(b.build(), "cpu")
    player.prepare()
    assert player.pinned == {different} and not player.failures
    player.iteration()


def test_stand_ins_do_what_they_say():
    b = ProgramBuilder()
    b.stand_in(StandInKind.GEMM, "gemm", flops=2 * 8 * 16 * 32, dims=[8, 16, 32, 1])
    b.stand_in(StandInKind.ELEMENTWISE, "copy", size_bytes=4096)
    player = players.Player(b.build(), "cpu")
    player.prepare()
    with torch.profiler.profile(record_shapes=True) as profiler:
        player.iteration()
    shapes = {e.name: e.input_shapes for e in profiler.events() if e.name in ("aten::bmm", "aten::neg")}
    assert shapes["aten::bmm"][:2] == [[1, 8, 32], [1, 32, 16]]
    assert shapes["aten::neg"][0] == [512]  # 2 KiB read, 2 KiB written


def test_a_training_step_is_recorded_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = torch.nn.Sequential(
        torch.nn.Embedding(16, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Dropout(0.1),
        torch.nn.Linear(8, 16),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters())
    ids, target = torch.randint(0, 16, (4, 5)), torch.randint(0, 16, (20,))
    with collect.trace(tmp_path / "run", steps=2, warmup=1) as run:
        for _ in range(4):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(ids).view(20, 16), target).backward()
            optimizer.step()
            run.step()
    command = ["replay", str(tmp_path / "run"), "-o", str(tmp_path / "again"), "--iterations", "2", "--warmup", "0"]
    assert main([*command, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"covered, by time +100.0%", out) and "stand-ins" not in out
    again = etude.open_run(tmp_path / "again")
    assert sorted(set(again.job.traces[0].step.tolist()) - {-(2**63)}) == [1, 2]
    assert main([*command, "--device", "cpu"]) == 2  # nothing is overwritten


def test_a_generated_job_of_two_ranks_plays_its_work_and_its_collectives(tmp_path: Path):
    model = tmp_path / "tiny.yaml"
    model.write_text("{layers: 1, hidden: 16, heads: 2, ffn: 32, vocab: 32, seq: 8, gated: true}\n")
    asked = ["generate", str(model), "--gpus", "8", "--tp", "2", "--micro-batch", "1", "--global-batch", "4"]
    assert main([*asked, "-o", str(tmp_path / "job")]) == 0
    job = etude.open(tmp_path / "job")
    command = ["replay", str(tmp_path / "job"), "-o", str(tmp_path / "again"), "--ranks", "0-1", "--device", "cpu"]
    assert main([*command, "--iterations", "1", "--warmup", "0", "--threads", "1"]) == 0
    again = etude.open(tmp_path / "again")
    trace = job.trace(0)
    groups = [job.groups.ranks(int(job.group_slots(0)[slot])) for slot in trace.group[trace.kind == 8].tolist()]
    inside = sum(members is not None and {0, 1} <= set(members.tolist()) for members in groups)
    assert inside > 0 and again.ranks.tolist() == [0, 1]
    assert [int((again.trace(rank).kind == 8).sum()) for rank in (0, 1)] == [inside, inside]


def test_a_step_without_the_profiler_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with collect.trace(tmp_path / "run", steps=1, warmup=4) as run:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            run.step()
    measured = collect.manifests(tmp_path / "run")[0]["steps"]["unprofiled"]
    assert (
        measured["count"] == 1 and measured["step_ns"] > 0
    )  # of four the first is thrown away, the last two are light
    command = ["replay", str(tmp_path / "run"), "--device", "cpu", "--iterations", "1", "--warmup", "0", "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["step_ns"]["unprofiled"] == measured["step_ns"]
    assert main([*command, "--unprofiled", "41ms"]) == 0
    assert json.loads(capsys.readouterr().out)["step_ns"]["unprofiled"] == 41_000_000
    assert main([*command, "--unprofiled", "soon"]) == 2
    torch.set_num_threads(2)  # recorded with one thread: so it is played
    program = plan(etude.open(tmp_path / "run"), recording=tmp_path / "run")[0]
    assert program.about["host"]["light_steps"] == 2
    assert play(program, PlayerOptions(iterations=1, warmup=0, device="cpu"))["threads"] == 1
    assert play(program, PlayerOptions(iterations=1, warmup=0, device="cpu", threads=2))["threads"] == 2


def test_calls_are_made_when_the_host_made_them(monkeypatch: pytest.MonkeyPatch):
    b = ProgramBuilder(host={"events": 4, "calls": 2, "recorded_ns": 5000})
    x = b.slot(b.storage(16, origin=StorageOrigin.OUTSIDE), "float32", [4])
    b.mark(0)
    for _ in range(2):
        b.call("aten::neg_", [{"t": 0}], [x], [], work_ns=1)
    b.step(StepKind.END, 0)
    b.host_ns = [0, 300, 200, 100]
    program, moments = b.build(), []
    monkeypatch.setattr(players.Player, "_until", lambda self, moment: moments.append(moment))
    for host, expected in (("fast", []), ("", []), ("recorded", [300, 500, 600])):
        player = players.Player(program, "cpu", host=host)
        player.prepare()
        player.iteration()
        assert moments == expected
        moments.clear()


def test_time_between_operators_of_a_cpu_is_played_by_default(monkeypatch: pytest.MonkeyPatch):
    b = ProgramBuilder(host={"free_ns": 600, "events": 4, "unit_ns": 5.0})
    x = b.slot(b.storage(16, origin=StorageOrigin.OUTSIDE), "float32", [4])
    b.mark(0)
    for _ in range(2):
        b.call("aten::neg_", [{"t": 0}], [x], [], work_ns=1)
    b.step(StepKind.END, 0)
    b.host_ns = [0, 300, 0, 100]
    program, spun = b.build(), []
    monkeypatch.setattr("etude.run.replay.player.spin", spun.append)
    for host, expected in (("fast", []), ("", [300, 100]), ("recorded", [300, 100])):
        player = players.Player(program, "cpu", host=host)
        player.prepare()
        player.iteration()
        assert spun == expected
        spun.clear()
    assert play(program, PlayerOptions(device="cpu"))["coverage"]["time"] is None  # a wait is no work


def test_what_a_call_costs_the_player_is_no_pause(monkeypatch: pytest.MonkeyPatch):
    us = 1000
    b = ProgramBuilder(
        host={"free_ns": 600 * us, "light_steps": 2, "event_ns": 900.0, "pass_ns": 2000.0, "page_faults": 0}
    )
    x = b.slot(b.storage(16, origin=StorageOrigin.OUTSIDE), "float32", [4])
    b.mark(0)
    for _ in range(2):
        b.call("aten::neg_", [{"t": 0}], [x], [], work_ns=1)
    b.step(StepKind.END, 0)
    b.host_ns = [0, 300 * us, 2 * us, 100 * us]
    spun: list[int] = []
    monkeypatch.setattr("etude.run.replay.player.work", spun.append)
    # Played twice; a pass takes 1,000 ns, which are 100 rounds, and took 2,000 in the recording. An event costs 100 ns.
    events = own_cost.ProfilerEvents(
        ["aten::neg_"] * 4, *np.array([[50, 60, 100, 112], [55, 65, 105, 117], [7, 7, 7, 7]]) * us
    )
    told = own_cost.Session(events, np.array([1000.0, 1000.0]), np.array([100.0, 100.0]), 200.0)
    monkeypatch.setattr("etude.run.replay.player.session", lambda play, times: told)
    monkeypatch.setattr("etude.run.replay.player.times_for", lambda once_ns: 2)
    monkeypatch.setattr("etude.run.replay.player.pause_rounds", lambda: 3.0)
    player = players.Player(b.build(), "cpu")
    player.prepare()
    spun.clear()
    player.iteration()
    # A us of the recording is 50 rounds. The player's gap is 600 (500 and 700) less 22.5, half of an event of the
    # recording; the first gap is not known, so it is as long. 15,000 - 577.5 - 3; then 100 + 5,000 - 577.5 - 3.
    assert player.own_rounds == 1155
    assert spun == [14_420, 4_520]


def test_gaps_that_are_not_played_are_said(monkeypatch: pytest.MonkeyPatch):
    about = {"free_ns": 300, "light_steps": 2, "event_ns": 900.0, "pass_ns": 2000.0, "page_faults": 0}
    b = ProgramBuilder(host=about, rank=0)
    x = b.slot(b.storage(16, origin=StorageOrigin.OUTSIDE), "float32", [4])
    b.mark(0)
    b.call("aten::neg_", [{"t": 0}], [x], [], work_ns=1)
    b.step(StepKind.END, 0)
    b.host_ns = [0, 300_000, 0]
    events = own_cost.ProfilerEvents(
        ["aten::neg_"], *np.array([[50], [55], [7]])
    )  # once, though it is played several times
    told = own_cost.Session(events, np.array([1000.0]), np.array([100.0]), 200.0)
    monkeypatch.setattr("etude.run.replay.player.session", lambda play, times: told)
    result = play(b.build(), PlayerOptions(device="cpu", iterations=1))
    assert [note.partition(":")[0] for note in result["notes"]] == ["gaps between operators are not replayed"]


def test_the_cost_of_a_gap_is_measured_between_operators():
    def play() -> None:
        torch.neg(x)
        time.sleep(0.002)
        torch.abs(x)

    x = torch.ones(8)
    told = own_cost.session(play, 3)
    steps = [own_cost.Expected(at, StepKind.CALL, name, 0) for at, name in enumerate(("aten::neg", "aten::abs"))]
    found = own_cost.own(told.events, steps, 3, 2)
    assert found is not None and len(told.pass_ns) == 3
    assert np.isnan(found.before_ns[:, 0]).all() and (found.before_ns[:, 1] >= 2e6).all()
    assert (found.inside_ns < 2e6).all() and (found.events[:, 1] == 1).all()
    another = [*steps, own_cost.Expected(2, StepKind.CALL, "aten::neg", 0)]
    assert own_cost.own(told.events, another, 3, 3) is None


def test_a_wait_for_communication_is_no_cost_of_the_player():
    # An operator up to 20; a call of 30 to 40, done at 90; the next operator at 100 waits for it.
    names = ["aten::neg", "c10d::allreduce_", "gloo:all_reduce", "aten::abs"]
    events = own_cost.ProfilerEvents(
        names, np.array([10, 30, 35, 100]), np.array([20, 40, 90, 110]), np.array([1, 1, 2, 1])
    )
    kinds = (
        (StepKind.CALL, "aten::neg"),
        (StepKind.COMM, "c10d"),
        (StepKind.WAIT, "c10d"),
        (StepKind.CALL, "aten::abs"),
    )
    found = own_cost.own(events, [own_cost.Expected(at, kind, name, 0) for at, (kind, name) in enumerate(kinds)], 1, 4)
    assert found is not None and found.before_ns[0].tolist()[1::2] == [10, 10]


def test_a_step_touches_as_many_new_pages_as_the_program_did():
    b = ProgramBuilder(host={"free_ns": 0, "light_steps": 1, "event_ns": 900.0, "pass_ns": 2000.0, "page_faults": 300})
    x = b.slot(b.storage(16, origin=StorageOrigin.OUTSIDE), "float32", [4])
    b.mark(0)
    b.call("aten::neg_", [{"t": 0}], [x], [], work_ns=1)
    player = players.Player(b.build(), "cpu", host="fast")
    player.prepare()
    before = page_faults()
    player.iteration()
    assert 290 <= player.new_pages <= 300 <= page_faults() - before + 10


def test_second_moments_are_0_where_gradients_are():
    b = ProgramBuilder(host={"free_ns": 0, "light_steps": 1, "event_ns": 900.0, "pass_ns": 2000.0, "page_faults": 0})
    gradient, average, square = (b.storage(16, origin=StorageOrigin.OUTSIDE) for _ in range(3))
    for storage, fill in ((gradient, Fill.ONES), (average, Fill.AVERAGES), (square, Fill.SQUARES)):
        b.fill(storage, fill)
    g, m, v = (b.slot(storage, "float32", [4]) for storage in (gradient, average, square))
    half = b.slot(gradient, "float32", [2])
    b.mark(0)
    b.call("aten::zero_", [{"t": 0}], [half], [])
    b.call("aten::lerp_.Scalar", [{"t": 0}, {"t": 1}, 0.1], [m, g], [])
    b.call("aten::addcmul_", [{"t": 0}, {"t": 1}, {"t": 2}, 0.001], [v, g, g], [])
    player = players.Player(b.build(), "cpu", host="fast")
    player.prepare()
    assert player._values[m].tolist()[:2] == [0, 0] == player._values[v].tolist()[:2]
    assert min(player._values[v].tolist()[2:]) > 0.001 and not player.failures


def test_functions_of_python_are_called_where_they_take_the_arguments():
    b = ProgramBuilder()
    x = b.slot(b.storage(16, origin=StorageOrigin.OUTSIDE), "float32", [4])
    b.call("aten::fill_.Scalar", [{"t": 0}, 3], [x], [])
    b.call("aten::add_.Tensor", [{"t": 0}, {"t": 1}, 2], [x, x], [])  # alpha must have its name
    b.call("aten::ones_like", [{"t": 0}, 6, 0, "cpu", False, None], [x], [])  # a data type as a number: the operator
    player = players.Player(b.build(), "cpu")
    player.prepare()
    player.iteration()
    assert player._values[x].tolist() == [9.0] * 4 and not player.failures
    assert [player.program.ops[op] for op, _ in player._calls.not_quick] == ["aten::ones_like"]


def test_streams_and_events_of_a_device_are_none_on_a_cpu():
    b = ProgramBuilder()
    x = b.slot(b.storage(16, origin=StorageOrigin.OUTSIDE), "float32", [4])
    b.call("aten::fill_.Scalar", [{"t": 0}, 3], [x], [])
    b.step(StepKind.EVENT, 0)
    b.step(StepKind.AWAIT, 0, stream=13)
    b.call("aten::neg_", [{"t": 0}], [x], [], stream=13)
    player = players.Player(b.build(), "cpu")
    player.prepare()
    player.iteration()
    assert player._values[x].tolist() == [-3.0] * 4


def test_what_cannot_be_a_cuda_graph():
    b = ProgramBuilder()
    there = b.slot(b.storage(4, "cuda:0", StorageOrigin.OUTSIDE), "float32", [1])
    here = b.slot(b.storage(4, "cpu", StorageOrigin.OUTSIDE), "float32", [1])
    b.call("aten::item", [{"t": 0}], [here], [])
    b.call("aten::copy_", [{"t": 0}, {"t": 1}, False], [there, there], [])
    b.comm(CommKind.ALL_REDUCE, in_bytes=4, out_bytes=4)
    assert list(cuda_graph.refusals(b.build(), communicates=False)) == []
    assert list(cuda_graph.refusals(b.build(), communicates=True)) == ["it communicates"]
    b.call("aten::item", [{"t": 0}], [there], [])
    b.call("aten::copy_", [{"t": 0}, {"t": 1}, False], [here, there], [])
    assert list(cuda_graph.refusals(b.build(), communicates=False)) == [
        "the host reads the result of aten::item",
        "aten::copy_ copies between host and device",
    ]


def test_a_cuda_graph_is_refused_on_a_cpu_and_with_a_host():
    program, _ = chain()
    with pytest.raises(UsageError, match="needs a CUDA device"):
        play(program, PlayerOptions(device="cpu", cuda_graph=True))
    with pytest.raises(UsageError, match="cannot have host time between its calls"):
        play(program, PlayerOptions(device="cpu", cuda_graph=True, host="recorded"))


def test_a_recording_of_a_gpu_plays_on_a_cpu():
    """The sample was recorded on an H200, in bfloat16 and with cuDNN's attention."""
    program = plan(etude.open(Path(str(files("etude") / "capture" / "sample"))))[0]
    found = play(program, PlayerOptions(iterations=1, warmup=0, device="cpu"))
    assert found["failures"] == [] and found["coverage"]["time"] == 1.0


def test_a_device_that_is_not_here():
    program, _ = chain()
    with pytest.raises(UsageError, match="cuda:99"):
        play(program, PlayerOptions(device="cuda:99"))
    with pytest.raises(UsageError, match="unknown device"):
        play(program, PlayerOptions(device="tpu"))


def test_two_ranks_play_compute_and_communication_together(shared: Path, tmp_path: Path):
    programs = plan(etude.open(shared / "traces" / "torch_cpu" / "ddp_2p"))
    found = play_together(programs, PlayerOptions(iterations=1, warmup=0, device="cpu"), out=tmp_path)
    assert [one["rank"] for one in found] == [0, 1]
    assert all(one["coverage"]["time"] == 1.0 and not one["failures"] for one in found)
    again = etude.open(tmp_path)
    collectives = [int((again.trace(rank).kind == 8).sum()) for rank in (0, 1)]
    assert collectives == [5, 5]
