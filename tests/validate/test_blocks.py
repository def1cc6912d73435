"""Blocks of steps: when a delay is put in, what is measured, and what pairs make of it. No clock of this machine."""

import pytest

from etude.base.errors import UsageError
from etude.capture.collect import Delay, DelayKind, DelayPlan, Moment
from etude.capture.collect.delayed import DelayedProgram
from etude.capture.collect.delays import NONE, Delays, DelaySource, KernelDelay, StepBlock
from etude.capture.collect.moments import CalledModule, choose
from etude.decide.validate.asked import length_of
from etude.decide.validate.pairs import Pair, measured_change, pairs_of, turns, undelayed_step_ns

A, B = Moment(0, "a"), Moment(3, "b", True)


class Hand:
    """A clock that is moved by hand; every look at it takes 1 ns."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


def run(plan: DelayPlan, steps: int, rank: int = 0) -> tuple[Delays, list[tuple[int, bool]]]:
    """A program whose steps take 1000 ns and come to A and B."""
    clock, told = Hand(), []
    source = DelaySource(clock)
    delays = Delays(
        plan, rank, {DelayKind.HOST: source}, lambda blocks, done: told.append((len(blocks), done)), clock=clock
    )
    for _ in range(steps):
        delays.act(A)
        delays.act(B)
        clock.now += 1000
        delays.step_done()
    return delays, told


def plan(*blocks: int, rank: int | None = None) -> DelayPlan:
    delays = (Delay(A, DelayKind.HOST, 500), Delay(B, DelayKind.HOST, 200, rank))
    return DelayPlan(delays, blocks, steps=2, warmup=3)


def test_each_step_of_a_block_has_its_delay():
    found, told = run(plan(NONE, 0, NONE, 1), 3 + 8)
    assert [(b.delay, b.count) for b in found.blocks] == [(NONE, 0), (0, 2), (NONE, 0), (1, 2)]
    assert [b.injected_ns for b in found.blocks] == [0, 1000, 0, 400]
    took = [round(b.took_ns, -2) for b in found.blocks]
    assert took == [2000, 3000, 2000, 2400]
    assert told == [(1, False), (2, False), (3, False), (4, True)]


def test_a_program_that_ends_early_has_the_blocks_that_it_completed():
    found, _ = run(plan(NONE, 0, NONE), 3 + 5)
    assert [b.delay for b in found.blocks] == [NONE, 0]
    assert not found.done
    assert run(plan(NONE, 0, NONE), 4)[0].blocks == []


def test_nothing_is_put_in_after_the_last_block():
    found, told = run(plan(0), 20)
    assert (len(found.blocks), told) == (1, [(1, True)])


def test_a_delay_of_one_rank_is_put_in_there_alone():
    here, other = (run(plan(1, rank=1), 5, rank)[0].blocks[0] for rank in (1, 0))
    assert (here.count, other.count) == (2, 0)


def test_a_plan_is_the_same_after_json():
    import json

    made = plan(NONE, 0, rank=1)
    assert DelayPlan.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_a_block_takes_as_long_as_on_its_slowest_rank():
    ranks = ((StepBlock(0, 10, 5, 2), StepBlock(NONE, 9, 0, 0)), (StepBlock(0, 12, 0, 0),))
    assert DelayedProgram(0, ranks, 4).blocks() == [StepBlock(0, 12, 5, 2)]


def test_turns_have_an_undelayed_block_on_both_sides_and_go_back_and_forth():
    assert turns([2, 2]) == (NONE, 0, NONE, 1, NONE, 1, NONE, 0, NONE)
    assert turns([0, 1, 2]) == (NONE, 2, NONE, 1, NONE, 2, NONE)


def test_a_pair_is_a_block_against_the_mean_of_its_neighbours():
    """A machine that gets slower, 100 a block: 2000, 2100 + 600, 2200 -> 600 in 2 steps."""
    blocks = [
        StepBlock(NONE, 2000, 0, 0),
        StepBlock(0, 2700, 640, 2),
        StepBlock(NONE, 2200, 0, 0),
        StepBlock(1, 3000, 640, 1),
    ]
    assert pairs_of(blocks, 2) == [(0, Pair(300, 320))]  # the last block had its delay in one of two steps
    assert pairs_of(blocks[:2], 2) == [(0, Pair(350, 320))]
    assert undelayed_step_ns(blocks, 2) == 1050


def test_only_the_nearest_blocks_count():
    blocks = [StepBlock(NONE, 9000, 0, 0), StepBlock(NONE, 2000, 0, 0), StepBlock(0, 2600, 640, 2),
              StepBlock(NONE, 2000, 0, 0), StepBlock(NONE, 7000, 0, 0)]  # fmt: skip
    assert pairs_of(blocks, 2) == [(0, Pair(300, 320))]


def test_the_median_and_half_the_distance_of_quartiles():
    found = measured_change([Pair(change, 100) for change in (90, 100, 110, 120, 1000)])
    assert (found.change_ns, found.spread_ns, found.injected_ns, found.pairs) == (110, 10, 100, 5)
    assert measured_change([Pair(90, 100)]).spread_ns == 0


CALLED = [CalledModule(k, f"m{k}", trains=k > 0) for k in range(6)]


def test_modules_are_spread_over_the_step():
    assert choose(CALLED, 2) == [Moment(1, "m1"), Moment(4, "m4"), Moment(2, "m2", True), Moment(4, "m4", True)]
    assert choose(CALLED[:1], 3) == [Moment(0, "m0")]
    assert choose([], 3) == []


def test_modules_by_name():
    assert choose(CALLED, 2, ["m3", "m0"]) == [Moment(0, "m0"), Moment(3, "m3"), Moment(3, "m3", True)]
    with pytest.raises(UsageError, match="no module `x` is called in a step"):
        choose(CALLED, 2, ["x"])


def test_a_mark_is_its_moment():
    for moment in (A, B, Moment(12, "layers.3.mlp:odd")):
        assert Moment.of_mark(moment.mark) == moment
    assert Moment.of_mark("aten::mm") is None
    assert Moment.of_mark("etude.moment:x:forward:a") is None


def test_lengths_of_delays():
    assert length_of("5ms").of_step(10**9) == 5_000_000
    assert length_of("50%").of_step(10_000_000) == 5_000_000
    assert length_of("1ns").of_step(10**9) == 100_000  # shorter ones are lost in what a hook costs
    for text in ("x%", "-5%", "0%", "fast", "0ms"):
        with pytest.raises(UsageError):
            length_of(text)


class SlowDevice:
    """What `torch.cuda` is to a delay: a device of 2 cycles a ns that does one thing after another."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.asked: list[int] = []
        self.capturing = False
        self.cuda = self

    def Event(self, enable_timing: bool) -> "SlowDevice.Moment":  # noqa: N802 - as PyTorch has it
        return self.Moment(self)

    class Moment:
        def __init__(self, device: "SlowDevice") -> None:
            self.device, self.at_ns = device, 0

        def record(self) -> None:
            self.at_ns = self.device.now_ns

        def elapsed_time(self, later: "SlowDevice.Moment") -> float:
            return (later.at_ns - self.at_ns) / 1e6

    def _sleep(self, cycles: int) -> None:
        self.asked.append(cycles)
        self.now_ns += cycles // 2

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def is_available(self) -> bool:
        return True

    is_initialized = is_available

    def synchronize(self) -> None:
        pass


def test_work_on_a_device_is_as_long_as_asked_for():
    device = SlowDevice()
    kernel = KernelDelay(device)
    kernel.prepare()
    assert kernel.taken_ns() == 0  # trials are not of a block
    kernel.put(5_000_000)
    kernel.put(1_000_000)
    assert device.asked[-2:] == [10_000_000, 2_000_000]
    assert kernel.taken_ns() == 6_000_000
    device.capturing = True  # a sleep in a CUDA graph would come again whenever that is launched
    kernel.put(5_000_000)
    assert kernel.taken_ns() == 0
