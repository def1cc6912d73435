"""Programs whose calls fail, or would: operands have valid values, a call that fails is a stand-in, and the player goes
on."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from etude.run.replay import PlayerOptions, play, play_together
from etude.run.replay.arguments import RecordedTensor
from etude.run.replay.builder import ProgramBuilder
from etude.run.replay.memory import AddressMap
from etude.run.replay.operands import Content, OperandNeed, needs
from etude.run.replay.program import NOTHING, CommKind, Fill, Program, StorageOrigin
from later import TORCH, later

torch = later("torch", TORCH)
players, values = later("etude.run.replay.player"), later("etude.run.replay.valid_values")
calling, stages = later("etude.run.replay.calling"), later("etude.run.replay.stage")
failures = later("etude.run.replay.device_failures")


class Shape:
    """A tensor of which only this is known."""

    def __init__(self, *shape: int, dtype: str = "int64") -> None:
        self.shape, self.dtype = shape, dtype


TABLE, PICKED = Shape(7, 5, dtype="float32"), Shape(3)


@pytest.mark.parametrize(
    ("name", "given", "made", "expected"),
    [
        ("aten::embedding", [TABLE, PICKED, -1], [], [(0 + 1, NOTHING, Content.INDEX, 7)]),
        ("aten::embedding_dense_backward", [TABLE, PICKED, 11, -1, False], [], [(1, NOTHING, Content.INDEX, 11)]),
        ("aten::index_select", [TABLE, -1, PICKED], [], [(2, NOTHING, Content.INDEX, 5)]),
        ("aten::index_add_", [TABLE, 0, PICKED, TABLE], [], [(2, NOTHING, Content.INDEX, 7)]),
        ("aten::scatter_reduce.two", [TABLE, 1, PICKED, TABLE, "amax"], [], [(2, NOTHING, Content.INDEX, 5)]),
        ("aten::index.Tensor", [TABLE, [None, PICKED]], [], [(1, 1, Content.INDEX, 5)]),
        ("aten::index.Tensor", [TABLE, [Shape(7, dtype="bool")]], [[4, 5]], [(1, 0, Content.ONES, 4)]),
        ("aten::index_put_", [TABLE, [Shape(7, 5, dtype="bool")], Shape(9)], [], [(1, 0, Content.ONES, 9)]),
        ("aten::index_put_", [TABLE, [Shape(7, 5, dtype="bool")], Shape()], [], []),  # one value for all
        ("aten::nonzero", [TABLE], [[6, 2]], [(0, NOTHING, Content.ONES, 6)]),
        ("aten::where", [TABLE], [[6], [6]], [(0, NOTHING, Content.ONES, 6)]),
        ("aten::where.self", [TABLE, TABLE, TABLE], [[7, 5]], []),
        ("aten::masked_select", [TABLE, Shape(7, 1, dtype="bool")], [[15]], [(1, NOTHING, Content.ONES, 3)]),
        ("aten::one_hot", [PICKED, 8], [[3, 8]], [(0, NOTHING, Content.INDEX, 8)]),
        ("aten::one_hot", [PICKED, -1], [[3, 6]], [(0, NOTHING, Content.TOP, 6)]),
        ("aten::bincount", [PICKED, None, 4], [[4]], [(0, NOTHING, Content.INDEX, 4)]),
        ("aten::bincount", [PICKED, None, 4], [[9]], [(0, NOTHING, Content.TOP, 9)]),
        ("aten::nll_loss_forward", [TABLE, Shape(7), None, 1, -100], [], [(1, NOTHING, Content.INDEX, 5)]),
        ("aten::cross_entropy_loss", [TABLE, TABLE, None, 1, -100, 0.0], [], []),  # shares of classes
        ("aten::take", [TABLE, PICKED], [], [(1, NOTHING, Content.INDEX, 35)]),
        ("aten::repeat_interleave.Tensor", [PICKED, None], [[10]], [(0, NOTHING, Content.PARTS, 10)]),
        ("aten::multinomial", [TABLE, 1, False, None], [], [(0, NOTHING, Content.CHANCES, 35)]),
        ("aten::add.Tensor", [TABLE, PICKED], [], []),
    ],
)  # fmt: skip
def test_what_operators_require_of_their_operands(name: str, given: list[Any], made: list[Any], expected: list[Any]):
    assert [tuple(need)[:4] for need in needs(name, given, made)] == expected


CONTENTS = [(content, bound, low) for content, bound, low in (
    (Content.INDEX, 5, 0), (Content.INDEX, 1, -1), (Content.TOP, 6, 0), (Content.ONES, 4, 0), (Content.CHANCES, 0, 0),
    (Content.SHARE, 0, 0), (Content.OFFSETS, 11, 0), (Content.OFFSETS, 11, 1), (Content.PARTS, 17, 0),
    (Content.LENGTHS, 20, 5),
)]  # fmt: skip


@pytest.mark.parametrize(("content", "bound", "low"), CONTENTS)
def test_prepared_values_are_valid(content: Content, bound: int, low: int):
    need = OperandNeed(0, NOTHING, content, bound, low)
    real = content in (Content.CHANCES, Content.SHARE)
    bad = torch.full(
        (8,), -3.0 if real else -3 if content != Content.ONES else 0, dtype=torch.float32 if real else torch.int64
    )
    assert not values.is_valid(bad, need)
    made = values.prepared(bad, need, torch.Generator().manual_seed(1))
    assert made.dtype == bad.dtype and values.is_valid(made, need)


def test_a_repeated_operand_stays_repeated():
    wide = torch.tensor([[1], [9]]).expand(2, 4)
    need = OperandNeed(2, NOTHING, Content.INDEX, 3)
    for made in (values.prepared(wide, need, None), values.copied(wide)):
        assert made.shape == (2, 4) and made.stride()[1] == 0 and made.untyped_storage().nbytes() == 16
    assert not values.is_valid(wide, need)


def drifting() -> tuple[Program, int]:
    """An index that grows in every iteration picks rows of a table of three."""
    b = ProgramBuilder(source="recorded")
    table, index = b.storage(24, origin=StorageOrigin.OUTSIDE), b.storage(8, origin=StorageOrigin.OUTSIDE)
    b.fill(index, Fill.INTEGERS, 0, 1)
    rows, at = b.slot(table, "float32", [3, 2]), b.slot(index, "int64", [1])
    picked = b.slot(b.storage(8), "float32", [1, 2])
    b.mark(0)
    b.call("aten::add_.Tensor", [{"t": 0}, 1, 1], [at], [], schema="aten::add_.Tensor(Tensor(a!) self, ...)")
    b.call("aten::embedding", [{"t": 0}, {"t": 1}], [rows, at], [picked], work_ns=5, schema="aten::embedding(...)")
    return b.build(), at


def test_an_index_that_grows_stays_in_range():
    program, at = drifting()
    player = players.Player(program, "cpu")
    player.prepare()
    for _ in range(5):
        player.iteration()
    assert player._values[at].tolist() == [6] and not player.failures


def test_indices_out_of_range_are_never_passed():
    b = ProgramBuilder()
    x = b.slot(b.storage(16, origin=StorageOrigin.OUTSIDE), "float32", [4])
    at, out = b.slot(b.storage(16), "int64", [2]), b.slot(b.storage(8), "float32", [2])
    b.call("aten::full", [[2], 99, 4, None, "cpu", False], [], [at])
    b.call("aten::index_select", [{"t": 0}, 0, {"t": 1}], [x, at], [out])
    player = players.Player(b.build(), "cpu")
    player.prepare()
    player.iteration()
    assert not player.failures


def failing_later() -> Program:
    """A product whose second factor is made by a call that fails from its second time on."""
    b = ProgramBuilder(source="recorded")
    x = b.slot(b.storage(16, origin=StorageOrigin.OUTSIDE), "float32", [2, 2])
    y, z = (b.slot(b.storage(16), "float32", [2, 2]) for _ in range(2))
    b.mark(0)
    b.call("aten::neg", [{"t": 0}], [x], [y], work_ns=10)
    b.call("aten::mm", [{"t": 0}, {"t": 1}], [x, y], [z], work_ns=20)
    b.call("aten::abs_", [{"t": 0}], [z], [], work_ns=10)
    return b.build()


class Flaky:
    """An operator that works `good` times."""

    def __init__(self, good: int, call: Any, problem: Exception) -> None:
        self.good, self.call, self.problem = good, call, problem

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.good -= 1
        if self.good < 0:
            raise self.problem
        return self.call(*given, **named)


def flaky(monkeypatch: pytest.MonkeyPatch, name: str, good: int, problem: Exception) -> None:
    """Has an operator fail once it was called `good` times."""
    from etude.run.replay import operators

    bound = operators.remapped(name, "cpu")
    broken = operators.BoundOperator(Flaky(good, bound.call, problem), bound.single, bound.flat)
    plain = operators.remapped

    def remapped(which: str, device: str) -> Any:
        return broken if which == name else plain(which, device)

    for module in ("calling", "writing", "operators"):
        monkeypatch.setattr(f"etude.run.replay.{module}.remapped", remapped)


def test_a_call_that_fails_in_an_iteration_is_a_stand_in_and_the_rest_is_played(monkeypatch: pytest.MonkeyPatch):
    flaky(monkeypatch, "aten::neg", 2, IndexError("index 5 is out of bounds"))
    found = play(failing_later(), PlayerOptions(iterations=4, warmup=0, device="cpu"))
    assert found["coverage"]["stand_ins"] == [
        {"name": "aten::neg", "count": 1, "why": "IndexError: index 5 is out of bounds"}
    ]
    assert found["coverage"]["time"] == 0.75 and found["iterations"] == 4 and found["cpu_s"] >= 0


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "complex64", "uint16", "bool", "float64"])
def test_memory_of_any_type_is_filled(dtype: str):
    for fill in (Fill.NORMAL, Fill.POSITIVE, Fill.SQUARES, Fill.ONES, Fill.NONE):
        b = ProgramBuilder()
        storage = b.storage(64, origin=StorageOrigin.OUTSIDE)
        b.fill(storage, fill)
        x = b.slot(storage, dtype, [4])
        player = players.Player(b.build(), "cpu")
        player.prepare()
        assert str(player._values[x].dtype) == f"torch.{dtype}"


def test_a_stand_in_takes_the_time_of_the_operator(monkeypatch: pytest.MonkeyPatch):
    spun: list[int] = []
    monkeypatch.setattr("etude.run.replay.stand_ins.spin", spun.append)
    b = ProgramBuilder(light_share={"aten::no_such": 0.25})
    b.call("aten::no_such", [], [], [], work_ns=4000)
    b.call("aten::no_such_either", [], [], [], work_ns=300)
    player = players.Player(b.build(), "cpu")
    player.prepare()
    player.iteration()
    assert spun == [1000, 300]


def test_communication_that_fails_is_no_stand_in():
    b = ProgramBuilder()
    b.comm(CommKind.ALL_REDUCE, in_bytes=4, out_bytes=4)

    class Broken:
        all_light = False

        def issue(self, row: int, slots: Any) -> None:
            raise RuntimeError("the connection is closed")

    player = players.Player(b.build(), "cpu", comms=Broken())
    player.prepare()
    with pytest.raises(RuntimeError, match="connection is closed"):
        player.iteration()


def test_memory_of_two_devices_with_one_number_is_two_storages():
    b = ProgramBuilder()
    memory = AddressMap(b)
    here = RecordedTensor(0, 0, "float32", (0,), (1,), 4, "cpu")
    there = here._replace(device="cuda:0", shape=(2,))
    slots = [memory.made(here, set()), memory.read(there), memory.read(here)]
    assert slots[0] == slots[2] and b.slots[slots[0]][0] != b.slots[slots[1]][0]


def test_a_result_on_another_device_is_replaced_by_one_on_the_recorded_device():
    # `meta` stands for a device: a call that ignores the recorded device gives host memory, and `cat` refuses the two.
    b = ProgramBuilder()
    cache = b.storage(16, "cuda:0", StorageOrigin.OUTSIDE)
    b.fill(cache, Fill.NONE)
    host = b.storage(4, "cpu", StorageOrigin.OUTSIDE)
    b.fill(host, Fill.NONE)
    old, step = b.slot(cache, "float32", [4]), b.slot(b.storage(4, "cuda:0"), "float32", [1])
    b.slot(host, "float32", [1])
    both = b.slot(b.storage(20, "cuda:0"), "float32", [5])
    b.call("aten::full", [[1], 2.0, 6, None, None, None], [], [step])
    b.call("aten::cat", [[{"t": 0}, {"t": 1}], 0], [old, step], [both])
    stage = stages.Stage(b.build(), torch.device("meta"), 0)
    stage.fill()
    calls = calling.OperatorCalls(stage, True)
    calls.rehearse()
    assert stage.pinned == {step} and stage.values[step].device.type == "meta" and not calls.failures


def fake_device(monkeypatch: pytest.MonkeyPatch, broken: Any) -> None:
    """Has a CPU report errors as a CUDA device does."""
    for module in ("calling", "player", "device_failures"):
        monkeypatch.setattr(f"etude.run.replay.{module}.is_broken", broken)


def test_a_device_that_fails_is_used_by_another_process_without_the_operator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    flaky(monkeypatch, "aten::mm", 0, RuntimeError("CUDA error: device-side assert triggered"))
    fake_device(monkeypatch, lambda device: True)
    found = play(failing_later(), PlayerOptions(iterations=2, warmup=0, device="cpu"), out=tmp_path)
    (lost,) = found["coverage"]["stand_ins"]
    assert lost["name"] == "aten::mm" and "device-side assert" in lost["why"] and found["iterations"] == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["replay.rank0.json", "replay.rank0.kineto.json.gz"]


def test_a_device_fails_a_second_time(monkeypatch: pytest.MonkeyPatch):
    flaky(monkeypatch, "aten::mm", 1, RuntimeError("CUDA error: an illegal memory access was encountered"))
    fake_device(monkeypatch, lambda device: True)
    with pytest.raises(failures.DeviceFailedError, match="illegal memory access") as problem:
        play(failing_later(), PlayerOptions(iterations=2, warmup=0, device="cpu", without={"aten::neg": "failed"}))
    assert problem.value.exit_code == 2 and problem.value.without == {}
    program, _ = drifting()
    assert list(failures.to_leave_out(program, problem.value)) == ["aten::embedding"]


def test_all_processes_start_again_without_the_operator(monkeypatch: pytest.MonkeyPatch):
    asked: list[dict[str, Any]] = []

    def started(programs: Any, told: dict[str, Any], tick: Any) -> list[Any]:
        asked.append(told["player"])
        if len(asked) == 1:
            (Path(told["failed"]) / "1.json").write_text('{"aten::mm": "an error of the device"}')
            raise failures.DeviceFailedError({})
        return ["played"]

    monkeypatch.setattr("etude.run.replay.together._started", started)
    monkeypatch.setattr("etude.run.replay.together.rehearse", lambda programs: None)
    assert play_together([failing_later()], PlayerOptions(device="cpu")) == ["played"]
    assert [each["without"] for each in asked] == [{}, {"aten::mm": "an error of the device"}]


def test_errors_of_the_host_break_no_device(monkeypatch: pytest.MonkeyPatch):
    module: ModuleType = sys.modules["torch"]
    device = torch.device("cuda:0")
    assert not failures.is_broken(torch.device("cpu"))

    def fails(*given: Any, **named: Any) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(module.cuda, "synchronize", fails)
    assert failures.is_broken(device)
