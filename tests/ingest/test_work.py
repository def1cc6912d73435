"""FLOPs, bytes, phase and module of operators, and which node holds an operator's work."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from etude.capture.ingest.context import context
from etude.capture.ingest.reading import load_device, load_host
from etude.capture.ingest.work import OperatorWork, node_work, operator_work
from etude.model.schema import UNKNOWN
from recorded import device_json, event, host_json, node, op, read_device_json, read_host_json

FLOAT = "Tensor(float)"


def test_the_work_of_operators() -> None:
    mm = node(4, "aten::mm", 2, 3, inputs=([], [[2, 4], [4, 3]], [FLOAT, FLOAT]))
    host = read_host_json(host_json(mm, node(5, "aten::mystery", 2, 4), node(6, "aten::linear", 2, 5)))
    work = operator_work(host)
    assert work.flops.tolist() == [48, *[UNKNOWN] * 4]
    assert work.size_bytes.tolist() == [4 * 26, *[UNKNOWN] * 4]
    assert work.made_of_others.tolist() == [False, False, True, False, False]
    shown = event("cpu_op", "aten::mm", 1, 2, **{"Input Dims": [[2, 4], [4, 3]], "Input type": ["float", "float"]})
    assert operator_work(read_device_json(device_json(shown))).flops.tolist() == [48]
    assert work.take(np.array([0, -1])).flops.tolist() == [48, UNKNOWN]


def work(*flops: int, others: tuple[int, ...] = (), alike: list[int] | None = None) -> OperatorWork:
    """`alike`: numbers of the operators' names, which else are all different."""
    figures = np.array([f if f >= 0 else UNKNOWN for f in flops], np.int64)
    names = np.arange(len(flops)) if alike is None else np.array(alike)
    return OperatorWork(figures, figures, np.isin(np.arange(len(flops)), others), names)


def shares(work: OperatorWork, parent: list[int], operator: list[int], length: list[int]) -> list[int]:
    found = node_work(work, np.array(parent, np.int64), np.array(operator, np.int64), np.array(length, np.int64))
    return [int(f) if f != UNKNOWN else -1 for f in found[0]]


def test_the_longest_node_of_an_operator_holds_its_work() -> None:
    assert shares(work(10), [-1], [0, 0, -1], [5, 7, 90]) == [-1, 10, -1]
    # an operator whose callee launched its kernel
    assert shares(work(10, -1), [-1, 0], [1], [5]) == [10]


def test_nothing_counts_twice() -> None:
    # linear -> addmm: the one that does it; its kernel and a bias kernel of linear itself
    assert shares(work(10, 9, others=(0,)), [-1, 0], [1, 0], [5, 7]) == [9, -1]
    # linear -> something unknown: linear itself
    assert shares(work(10, -1, others=(0,)), [-1, 0], [1], [5]) == [10]
    # a convolution's backward pass calls a sum: the convolution is all of it
    assert shares(work(10, 2), [-1, 0], [0, 1], [5, 7]) == [-1, 10]


def test_an_operator_of_a_tensor_subclass_leaves_its_work_to_the_one_that_it_calls() -> None:
    # addmm of a DTensor, with the shapes of the whole -> the subclass -> addmm of the rank's half
    assert shares(work(20, -1, 10, alike=[0, 1, 0]), [-1, 0, 1], [0, 2], [9, 5]) == [-1, 10]
    # what such an operator calls besides, and knows, counts by itself
    assert shares(work(20, 3, 10, alike=[0, 1, 0]), [-1, 0, 0], [1, 2], [9, 5]) == [3, 10]


def test_phase_and_module() -> None:
    frame = event("python_function", "nn.Module: Net_0", 1, 20, **{"Python id": 1})
    inner = event("python_function", "nn.Module: Linear_0", 2, 10, **{"Python id": 2})
    forward, backward = op("aten::addmm", 3, 2, 1), op("AddmmBackward0", 31, 5, 3, tid=9)
    forward["args"] |= {"Sequence number": 7, "Fwd thread id": 0}
    backward["args"] |= {"Sequence number": 7, "Fwd thread id": 1}
    trace = read_device_json(
        device_json(
            frame, inner, forward,
            op("autograd::engine::evaluate_function: AddmmBackward0", 30, 9, 2, tid=9), backward,
            op("aten::mm", 32, 1, 4, tid=9),
            op("Optimizer.step#SGD.step", 50, 9, 5, cat="user_annotation"), op("aten::add_", 51, 2, 6),
            op("aten::ones", 25, 1, 7),
        )
    )  # fmt: skip
    found = context(trace)
    assert [found.phases[p] if p >= 0 else "" for p in found.phase] == [
        "", "", "forward", "backward", "backward", "backward", "optimizer", "optimizer", ""]  # fmt: skip
    assert [found.modules[m] if m >= 0 else "" for m in found.module] == [
        "", "", "Net_0.Linear_0", "", "Net_0.Linear_0", "Net_0.Linear_0", "", "", ""]  # fmt: skip


def test_a_real_step(shared: Path) -> None:
    """Two layers of width 64 and a head, 128 tokens: products forward, and twice that backward."""
    folder = shared / "traces/torch_cpu"
    device = load_device(folder / "train_1p_stack.rank0.kineto.json.gz")
    found, done = context(device), operator_work(device)
    products = np.isin(device.name, [i for i, n in enumerate(device.names) if n in ("aten::mm", "aten::addmm")])
    products &= device.is_category("cpu_op")
    by_phase = [int(done.flops[products & (found.phase == p)].sum()) for p in range(3)]
    layer = 2 * 128 * 64 * (3 * 64 + 64 + 256 + 256)
    assert by_phase[0] == 2 * layer + 2 * 128 * 64 * 512
    assert by_phase[1:] == [2 * by_phase[0], 0]
    assert (found.module[products & (found.phase >= 0)] >= 0).all()
    assert "LM_0.Block_0.Linear_0" in found.modules
    host = operator_work(load_host(folder / "train_1p_stack.rank0.et.json.gz"))
    assert host.flops[host.flops > 0].sum() == done.flops[done.flops > 0].sum()
