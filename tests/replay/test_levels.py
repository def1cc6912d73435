"""Which operators are called: worked by hand."""

from etude.run.replay.arguments import Arguments, RecordedTensor
from etude.run.replay.levels import RecordedOp, chosen


def tensor(storage: int) -> RecordedTensor:
    return RecordedTensor(storage, 0, "float32", (4,), (1,), 4, "cpu")


def side(*storages: int) -> Arguments:
    return Arguments([{"t": k} for k in range(len(storages))], [tensor(s) for s in storages], True)


class Recording:
    """Operators as (name, begin, end, given, gave), callers before what they call."""

    def __init__(self) -> None:
        self.ops: list[RecordedOp] = []

    def op(
        self, name: str, begin: int, end: int, given: tuple[int, ...], gave: tuple[int, ...], outer: int = -1
    ) -> int:
        self.ops.append(RecordedOp(len(self.ops), name, name, side(*given), side(*gave), begin, end, [], outer))
        if outer >= 0:
            self.ops[outer].calls.append(len(self.ops) - 1)
        return len(self.ops) - 1

    def called(self, **more: object) -> list[str]:
        is_comm = lambda op: op.name.startswith("c10d::")  # noqa: E731
        return [op.name for op in chosen(self.ops, lambda op: False, is_comm, **more)]  # type: ignore[arg-type]


def test_the_outer_one_is_called_where_nothing_inside_is_used_outside():
    r = Recording()
    linear = r.op("aten::linear", 0, 10, (1, 2), (3,))
    r.op("aten::t", 1, 2, (2,), (2,), linear)
    r.op("aten::mm", 3, 9, (1, 2), (3,), linear)
    r.op("aten::relu", 11, 12, (3,), (4,))
    assert r.called() == ["aten::linear", "aten::relu"]


def test_the_inner_one_is_called_where_the_backward_pass_needs_its_mean():
    r = Recording()
    norm = r.op("aten::layer_norm", 0, 10, (1,), (2,))
    r.op("aten::native_layer_norm", 1, 9, (1,), (2, 3), norm)
    r.op("aten::native_layer_norm_backward", 20, 30, (2, 3), (4,))
    assert r.called() == ["aten::native_layer_norm", "aten::native_layer_norm_backward"]


def test_memory_that_is_made_anew_is_not_what_was_there():
    r = Recording()
    norm = r.op("aten::layer_norm", 0, 10, (1,), (2,))
    r.op("aten::native_layer_norm", 1, 9, (1,), (2, 3), norm)
    r.op("aten::neg", 20, 21, (2,), (3,))  # 3 is another tensor now
    r.op("aten::abs", 22, 23, (3,), (4,))
    assert r.called() == ["aten::layer_norm", "aten::neg", "aten::abs"]


def test_what_launches_kernels_itself_is_called_itself():
    r = Recording()
    outer = r.op("aten::backward", 0, 10, (1,), (2,))
    r.op("aten::zeros", 1, 2, (), (2,), outer)
    r.op("aten::sort", 3, 4, (1,), (5,), outer)
    r.op("aten::add", 11, 12, (2, 5), (6,))
    assert r.called() == ["aten::zeros", "aten::sort", "aten::add"]
    assert r.called(launches={0}) == ["aten::backward", "aten::add"]


def test_wrappers_are_opened():
    r = Recording()
    outer = r.op("aten::mm", 0, 10, (17, 17), (17,))
    r.op("aten::mm", 2, 8, (1, 2), (3,), outer)
    lone = r.op("aten::linear", 20, 30, (17, 17), (17,))
    r.op("aten::addmm", 21, 29, (4, 5), (6,), lone)
    assert r.called() == ["aten::mm", "aten::addmm"]


def test_communication_inside_is_called_by_itself():
    r = Recording()
    outer = r.op("_c10d_functional::all_reduce", 0, 10, (1,), (2,))
    r.op("aten::clone", 1, 2, (1,), (2,), outer)
    r.op("c10d::allreduce_", 3, 9, (2,), (2,), outer)
    assert r.called() == ["aten::clone", "c10d::allreduce_"]
