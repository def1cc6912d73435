"""What a program that cannot be validated is told, from what its processes left."""

from typing import Any

import pytest

from etude.base.errors import UsageError
from etude.capture.collect import Delay, DelayKind, DelayPlan, LaunchedProgram, Moment
from etude.capture.collect.delays import NONE, StepBlock
from etude.decide.validate.measuring import check_progress, check_recorded

COMMAND = ["python", "train.py"]
PLAN = DelayPlan((Delay(Moment(0, "layers.0"), DelayKind.HOST, 10),), (NONE, 0, NONE), steps=3, warmup=8)


def manifest(**changes: Any) -> dict[str, Any]:
    steps = {"counted_by": "optimizer", "numbers": [8, 9, 10], "recorded": 3}
    known = {"rank": 0, "world_size": 1, "partial": False, "reason": "", "files": {"host": "a"}, "steps": steps}
    return {**known, **changes}


@pytest.mark.parametrize(
    ("done", "problem"),
    [
        (LaunchedProgram(3, (), printed="line\nlast words"), "exit code 3\nhint: line\nlast words"),
        (LaunchedProgram(0, (), ("UsageError: no module `x` is called\nhint: called: a",)),
         "no module `x` is called\nhint: called: a"),
        (LaunchedProgram(0, (manifest(steps={"counted_by": "nothing", "numbers": []}),)), "no steps were counted"),
        (LaunchedProgram(0, (manifest(partial=True, reason="ended after 1 steps, the warm-up is 8"),)),
         "rank 0: ended after 1 steps, the warm-up is 8\nhint: take fewer: --warmup 3 --steps 2"),
        (LaunchedProgram(0, (manifest(world_size=2),)), "nothing from rank 1 of 2"),
        (LaunchedProgram(0, ()), "nothing was recorded"),
    ],
)  # fmt: skip
def test_recordings_that_are_not_enough(done: LaunchedProgram, problem: str):
    with pytest.raises(UsageError, match=problem) as refused:
        check_recorded(COMMAND, done)
    assert refused.value.exit_code == 2


def test_a_whole_recording_is_enough():
    check_recorded(COMMAND, LaunchedProgram(0, (manifest(),)))


def test_a_program_with_too_few_steps_for_a_delay():
    with pytest.raises(UsageError, match="the program has 12 steps, and a run with delays needs 14"):
        check_progress(PLAN, [StepBlock(NONE, 100, 0, 0)], set(), 12)


def test_a_module_that_is_not_reached_in_every_step():
    with pytest.raises(UsageError, match="`layers.0` was reached in 1 of 3 steps"):
        check_progress(
            PLAN, [StepBlock(NONE, 100, 0, 0), StepBlock(0, 100, 10, 1), StepBlock(NONE, 100, 0, 0)], set(), 17
        )
