"""Recording in this process: one rank, tiny models."""

import getpass
import json
import re
import shutil
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import etude
from collected import ROOTS, Files
from etude.base.errors import UsageError
from etude.capture.collect import torch as collect
from etude.capture.collect.launcher import LaunchedProgram
from later import TORCH, later

torch = later("torch", TORCH)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def stepper(**schedule: int) -> Callable[[], None]:
    """One training step; with a learning-rate scheduler if `every` says how often."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rate = torch.optim.lr_scheduler.StepLR(optimizer, schedule["every"]) if schedule else None

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        if rate is not None:
            rate.step()

    return step


def test_optimizer_steps_are_counted(tmp_path: Path):
    step = stepper()
    with collect.trace(tmp_path / "run", steps=2, warmup=2, plan={"dp": 1}) as run:
        assert run.recording
        for _ in range(6):
            step()
        assert not run.recording
    found = Files(tmp_path / "run")
    assert found.steps() == found.manifest["steps"]["numbers"] == [2, 3]
    assert found.nodes.count("aten::linear") == found.events.count("aten::linear") == 2 * 2
    assert found.unlinked() <= ROOTS
    timed = found.manifest["steps"]["unprofiled"]
    assert (timed["count"], timed["before"]["count"], timed["after"]["count"]) == (3, 1, 2)
    assert 0 < timed["least_ns"] <= timed["step_ns"] <= timed["most_ns"]
    assert [(one["kind"], one["file"]) for one in found.manifest["windows"]] == [("full", "trace.rank0.kineto.json.gz")]
    assert found.manifest["steps"] == {
        "asked": 2, "warmup": 2, "recorded": 2, "numbers": [2, 3], "counted_by": "optimizer",
        "optimizer_steps": [1, 1], "unprofiled": timed,
    }  # fmt: skip
    assert (found.manifest["partial"], found.manifest["reason"]) == (False, "")
    assert (found.manifest["rank"], found.manifest["world_size"], found.manifest["plan"]) == (0, 1, {"dp": 1})
    assert found.manifest["versions"]["torch"] == str(torch.__version__)
    assert set(run.files) == {"host", "device"}
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "trace.rank0.et.json.gz", "trace.rank0.kineto.json.gz", "trace.rank0.manifest.json",
    ]  # fmt: skip


def test_a_scheduler_made_before_hides_no_step_and_nothing_warns(tmp_path: Path):
    step = stepper(every=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with collect.trace(tmp_path, steps=1):
            step()
            step()
    assert Files(tmp_path).nodes.count("Optimizer.step#SGD.step") == 1


def test_calls_of_step_count_instead_of_the_optimizer(tmp_path: Path):
    step = stepper()
    with collect.trace(tmp_path, steps=2, warmup=1) as run:
        for _ in range(4):
            step()
            step()  # two optimizer steps make a step of the program
            run.step()
    found = Files(tmp_path)
    assert found.manifest["steps"]["counted_by"] == "call"
    assert found.manifest["steps"]["recorded"] == 2
    assert found.nodes.count("Optimizer.step#SGD.step") == 4


def test_the_first_of_several_optimizers_is_the_clock(tmp_path: Path):
    one, other = stepper(), stepper()
    with collect.trace(tmp_path, steps=2):
        for _ in range(3):
            one()
            other()
    found = Files(tmp_path)
    assert found.nodes.count("Optimizer.step#SGD.step") == 2 + 1
    assert found.manifest["steps"]["recorded"] == 2


@pytest.mark.parametrize("times", [2, 3])
def test_an_optimizer_that_steps_several_times_before_another_is_not_the_clock(tmp_path: Path, times: int):
    critic, generator = stepper(), stepper()
    with collect.trace(tmp_path, steps=2, warmup=4):
        for _ in range(8):
            for _ in range(times):
                critic()
            generator()
    found = Files(tmp_path)
    assert found.nodes.count("Optimizer.step#SGD.step") == 2 * (times + 1)
    assert found.manifest["steps"]["optimizer_steps"] == [times + 1] * 2
    assert found.manifest["steps"]["unprofiled"]["after"]["count"] == times + 1  # whole iterations only


def test_steps_with_different_numbers_of_optimizer_steps_are_said(tmp_path: Path):
    critic, generator = stepper(), stepper()
    with collect.trace(tmp_path, steps=4):  # without a warm-up it is not known in time
        for _ in range(4):
            critic()
            critic()
            generator()
    about = Files(tmp_path).manifest
    assert about["steps"]["optimizer_steps"] == [1, 1, 2, 1]
    assert LaunchedProgram(0, (about,)).problems == [
        "rank 0: the recorded steps have 1, 1, 2, 1 optimizer steps: an iteration of the program may be several of them"
    ]
    assert [note.what for note in etude.open(tmp_path).notes] == [
        "has steps of 1, 2 optimizer steps: an iteration may be several of them"
    ]


def test_an_optimizer_that_steps_once_does_not_stop_the_clock(tmp_path: Path):
    often, once = stepper(), stepper()
    with collect.trace(tmp_path, steps=2, warmup=4):
        for k in range(20):
            often()
            if k == 1:
                once()
    assert Files(tmp_path).manifest["steps"]["optimizer_steps"] == [1, 1]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_wrapper_around_an_optimizer_is_no_second_one(tmp_path: Path, every: int):
    """It steps in every so many calls: in the others gradients are accumulated."""

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: Any) -> None:
            super().__init__(inner.param_groups, {})
            self.inner, self.calls = inner, 0

        def step(self, closure: Any = None) -> None:
            self.calls += 1
            if self.calls % every == 0:
                self.inner.step()

    weight = torch.nn.Parameter(torch.ones(2))
    wrapped = Wrapper(torch.optim.SGD([weight], lr=0.1))
    with collect.trace(tmp_path, steps=2, warmup=1):
        for _ in range(4 * every):
            weight.sum().backward()
            wrapped.step()
    found = Files(tmp_path)
    assert found.manifest["steps"]["optimizer_steps"] == [1, 1]
    assert found.nodes.count("aten::ones_like") == 2 * every  # one a backward pass


def test_without_any_step_all_is_recorded(tmp_path: Path):
    with collect.trace(tmp_path, steps=3, warmup=2):
        torch.ones(4) + 1
    found = Files(tmp_path)
    assert found.nodes.count("aten::add") == 1
    assert found.manifest["steps"]["counted_by"] == "nothing"
    assert found.manifest["partial"] is False


def test_too_few_steps_are_partial_and_say_so(tmp_path: Path):
    step = stepper()
    with collect.trace(tmp_path, steps=3):
        step()
    assert Files(tmp_path).manifest["reason"] == "ended after 1 of 3 steps"
    with collect.trace(tmp_path / "b", steps=1, warmup=5):
        step()
        step()
    short = Files(tmp_path / "b")
    assert short.manifest["reason"] == "ended after 2 steps, the warm-up is 5"
    assert short.manifest["files"] == {}


def test_an_exception_passes_through_and_leaves_a_partial_run(tmp_path: Path):
    step = stepper()
    with pytest.raises(ZeroDivisionError, match="mid-step"), collect.trace(tmp_path, steps=3):
        step()
        torch.ones(4) + 1
        raise ZeroDivisionError("mid-step, with /a/path in it")
    found = Files(tmp_path)
    assert (found.manifest["partial"], found.manifest["reason"]) == (True, "ZeroDivisionError")
    assert found.nodes.count("aten::add") == 1
    assert found.manifest["steps"]["numbers"] == [0]


def test_after_it_pytorch_is_as_it_was(tmp_path: Path):
    step = stepper(every=2)
    before = (vars(torch.optim.SGD)["step"], vars(torch.optim.Optimizer)["profile_hook_step"])
    with collect.trace(tmp_path, steps=1):
        step()
    assert (vars(torch.optim.SGD)["step"], vars(torch.optim.Optimizer)["profile_hook_step"]) == before
    with torch.profiler.profile() as profiler:
        step()
    assert len(profiler.events()) > 0


def test_an_earlier_run_is_refused_or_replaced(tmp_path: Path):
    with collect.trace(tmp_path):
        torch.ones(1)
    before = (tmp_path / "trace.rank0.manifest.json").read_bytes()
    with pytest.raises(UsageError, match="already contains a run"), collect.trace(tmp_path):
        pytest.fail("must not come here")
    assert (tmp_path / "trace.rank0.manifest.json").read_bytes() == before
    (tmp_path / "old.rank5.manifest.json").write_text("{}")
    with collect.trace(tmp_path, force=True):
        torch.ones(1)
    assert (tmp_path / "trace.rank0.manifest.json").read_bytes() != before
    assert not (tmp_path / "old.rank5.manifest.json").exists()  # of a larger world: would be taken for part of this one


def test_the_decorator_records_the_first_call(tmp_path: Path):
    @collect.traced(tmp_path, name="f")
    def double(x: Any) -> Any:
        return x * 2

    assert [double(torch.ones(1)).item() for _ in range(2)] == [2.0, 2.0]
    assert Files(tmp_path, name="f").nodes.count("aten::mul") == 1


def test_nothing_names_the_machine_the_user_or_the_folder(tmp_path: Path):
    with collect.trace(tmp_path, name="x"):
        torch.ones(1)
    found = Files(tmp_path, name="x")
    manifest = json.dumps(found.manifest)
    for word in (socket.gethostname(), getpass.getuser(), "/"):
        assert not re.search(rf"(?<!\w){re.escape(word)}(?!\w)", manifest), word
    about = json.dumps({key: value for key, value in found.device.items() if key != "traceEvents"})
    assert socket.gethostname() not in about
    assert str(tmp_path) not in about + json.dumps(found.host)
    assert found.device["traceName"] == "x.rank0.kineto.json"


def test_options_reach_the_profiler(tmp_path: Path):
    with collect.trace(tmp_path, memory=True, flops=True, stacks=True):
        torch.ones(64) + torch.ones(64)
    device = Files(tmp_path).device
    assert (device["profile_memory"], device["with_flops"], device["with_stack"]) == (1, 1, 1)
    assert "[memory]" in {event["name"] for event in device["traceEvents"]}


def test_forked_workers_do_not_write_into_the_trace(tmp_path: Path):
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(64.0)), batch_size=4, num_workers=1, multiprocessing_context="fork"
    )
    with collect.trace(tmp_path):
        total = sum(batch.sum().item() for (batch,) in data)
    found = Files(tmp_path)
    assert total == 63 * 32
    assert found.nodes.count("aten::sum") == found.events.count("aten::sum") == 2 * 16  # it calls itself
    assert found.unlinked() <= ROOTS


def test_a_recording_that_cannot_be_written_is_a_warning(tmp_path: Path):
    recording = collect.trace(tmp_path / "run")
    recording.__enter__()
    shutil.rmtree(tmp_path / "run")
    with pytest.warns(RuntimeWarning, match="was not written"):
        recording.__exit__(None, None, None)
    with collect.trace(tmp_path / "next"):
        torch.ones(1)
    assert Files(tmp_path / "next").manifest["partial"] is False


def test_stderr_is_left_to_the_program(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with collect.trace(tmp_path):
        torch.ones(1)
    assert capfd.readouterr() == ("", "")


def test_a_second_profiler_is_refused(tmp_path: Path):
    with torch.profiler.profile(), pytest.raises(UsageError, match="already running"), collect.trace(tmp_path):
        pytest.fail("must not come here")


def test_a_second_profiler_that_is_only_prepared_is_refused_too(tmp_path: Path):
    """In the warm-up of its schedule PyTorch does not call a profiler enabled; one more would break it."""
    own = torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=1))
    own.start()
    with pytest.raises(UsageError, match="already running"), collect.trace(tmp_path):
        pytest.fail("must not come here")
    own.step()
    torch.ones(1) + 1
    own.stop()
    assert "aten::add" in {event.name for event in own.events()}


def test_the_longest_window_between_profilers_of_the_program_is_kept(tmp_path: Path):
    step = stepper()
    with collect.trace(tmp_path, steps=3):
        for times in (1, 3, 1):
            for _ in range(times):
                step()
            with torch.profiler.profile() as own:  # ends our window, and begins no new one before a step is over
                step()
            assert sum(event.name == "Optimizer.step#SGD.step" for event in own.events()) == 1
    found = Files(tmp_path)
    # Step 0 is ours, 1 its own; when 2 is over, 3 and 4 are ours; 5 its own; when 6 is over, only 7 is left, its own.
    assert found.manifest["steps"]["numbers"] == [3, 4]
    assert found.manifest["reason"] == "ended after 2 of 3 steps: the program runs its own profiler"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert not hasattr(torch.autograd.profiler._prepare_profiler, "__wrapped__")


def test_groups_that_were_destroyed_inside_are_in_the_manifest(tmp_path: Path):
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    with collect.trace(tmp_path / "run"):
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        early = torch.distributed.new_group([0], group_desc="early")
        torch.distributed.destroy_process_group(early)
        torch.distributed.new_group([0], group_desc="late")
        torch.distributed.destroy_process_group()
    manifest = Files(tmp_path / "run").manifest
    assert sorted(group["pg_desc"] for group in manifest["process_groups"]) == ["default_pg", "early", "late"]
    assert manifest["backend"] == "gloo"
