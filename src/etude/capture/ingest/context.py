"""Where in the model, the step and the program an operator runs: module path, phase and Python stack, as far as a trace
shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.capture.ingest.engine_passes import engine_passes
from etude.capture.link import tree_kernels as k
from etude.capture.link.device import DeviceTrace
from etude.capture.link.tree import Tree, call_tree, innermost
from etude.kernels.arrays import I32, I64, distinct_values
from etude.model.schema import UNKNOWN

PHASES: Final = ("forward", "backward", "optimizer", "prefill", "decode", "mixed", "draft", "verify")
_FORWARD, _BACKWARD, _OPTIMIZER = range(3)
_MODULE: Final = "nn.Module: "
_ENGINE: Final = "autograd::engine::evaluate_function"
_SHARDED: Final = re.compile(r"FSDP::\w+ \((?P<module>[^()]+)\)")
"""FSDP2's annotations name their module."""
_NO_LINES: Final = (_MODULE, "<built-in")
"""Frames that are not a line of a program."""
DEEPEST: Final = 16
"""Most frames of a stack that are kept, from the innermost out."""


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """One row per row of the device trace; -1 if unknown, and on all but operators and annotations."""

    phase: I32
    phases: tuple[str, ...]
    module: I32
    modules: tuple[str, ...]
    stack: I32
    stacks: tuple[str, ...]
    """Python frames, the outermost first: `train.py(96): main;model.py(31): forward`."""


def context(device: DeviceTrace) -> Context:
    """Phase and module of every operator.

    Phase: that of an engine's pass around it; inside `Optimizer.step#`; on autograd's behalf; forward is
    what autograd later goes back over, and what runs inside a module. Module: the `nn.Module` frames around it, which
    are recorded with stacks, FSDP's annotations, and of the backward pass the module of its forward operator.
    """
    tree = call_tree(device, device.is_category("cpu_op", "user_annotation"))
    names, words = _module_names(device, tree)
    backward_of = _forward_operators(device, tree)
    phase = _phases(device, tree, backward_of, names)
    order = np.arange(len(tree.row))
    k.inherit(order, tree.parent, names)
    follows = (backward_of >= 0) & (names < 0)
    names[follows] = names[backward_of[follows]]
    k.inherit(order, tree.parent, names)
    stack, stacks = _stacks(device, tree)
    follows = (backward_of >= 0) & (stack < 0)
    stack[follows] = stack[backward_of[follows]]
    k.inherit(order, tree.parent, stack)
    return Context(
        _spread(device, tree, phase), PHASES, _spread(device, tree, names), words, _spread(device, tree, stack), stacks
    )


def _spread(device: DeviceTrace, tree: Tree, values: I64) -> I32:
    column = np.full(len(device), -1, np.int32)
    column[tree.row] = values
    return column


def _module_names(device: DeviceTrace, tree: Tree) -> tuple[I64, tuple[str, ...]]:
    """Module of each operator that is in a module's frame or is about one, and the paths as text."""
    is_frame = np.array([name.startswith(_MODULE) for name in device.names] + [False])[device.name]
    frames = call_tree(device, is_frame & device.is_category("python_function"))
    paths: list[str] = []
    for row, parent in zip(frames.row.tolist(), frames.parent.tolist(), strict=True):
        own = device.names[device.name[row]].removeprefix(_MODULE)
        paths.append(f"{paths[parent]}.{own}" if parent >= 0 else own)
    words = list(dict.fromkeys(paths))
    code = {path: i for i, path in enumerate(words)}
    about = {name: found["module"] for name in device.names if (found := _SHARDED.fullmatch(name))}
    for module in about.values():
        code.setdefault(module, len(code))
    of_name = np.array([code[about[n]] if n in about else -1 for n in device.names] + [-1], np.int64)
    names = of_name[device.name[tree.row]]
    if len(frames.row):
        around = _frame_around(device, tree, frames)
        of_frame = np.array([code[path] for path in paths] + [-1], np.int64)
        names = np.where(names < 0, of_frame[around], names)
    return names, tuple(code)


def _frame_around(device: DeviceTrace, tree: Tree, frames: Tree) -> I64:
    """The innermost of these frames around each operator, -1: none."""
    row = np.concatenate([frames.row, tree.row])
    end = device.start_ns[row] + np.maximum(device.duration_ns[row], 0)
    is_outer = np.arange(len(row)) < len(frames.row)
    # an operator may begin with its frame, so frames are a thread's outer intervals whatever the order of ties
    found = innermost(device.tid[row], device.start_ns[row] + ~is_outer, end - ~is_outer, is_outer)
    return found[len(frames.row) :].astype(np.int64)


def _stacks(device: DeviceTrace, tree: Tree) -> tuple[I64, tuple[str, ...]]:
    """The Python stack of each operator that Python called, as numbers (-1: none) and texts."""
    is_line = np.array([not name.startswith(_NO_LINES) for name in device.names] + [False])[device.name]
    frames = call_tree(device, is_line & device.is_category("python_function"))
    if not len(frames.row):
        return np.full(len(tree.row), -1, np.int64), ()
    around = _frame_around(device, tree, frames)
    words: dict[str, int] = {}
    of_frame = np.full(len(frames.row) + 1, -1, np.int64)
    for frame in distinct_values(around[around >= 0]).tolist():
        lines: list[str] = []
        at = frame
        while at >= 0 and len(lines) < DEEPEST:
            lines.append(device.names[device.name[frames.row[at]]])
            at = int(frames.parent[at])
        of_frame[frame] = words.setdefault(";".join(reversed(lines)), len(words))
    return of_frame[around], tuple(words)


def _forward_operators(device: DeviceTrace, tree: Tree) -> I64:
    """For each operator of the backward pass, its forward operator; -1 elsewhere.

    Both have one sequence number; the outermost with it are those that autograd saw.
    """
    number = device.sequence_number[tree.row]
    behind = _is_backward(device, tree)
    found = np.full(len(tree.row), -1, np.int64)
    forward = np.flatnonzero(~behind & (number >= 0) & device.is_category("cpu_op")[tree.row])
    # autograd counts up while it records, so of several with one number the last outermost made the node
    forward = forward[np.lexsort((-device.start_ns[tree.row[forward]], number[forward]))]
    numbers = number[forward]
    wanted = np.flatnonzero(behind & (number >= 0))
    at = np.searchsorted(numbers, number[wanted])
    there = np.append(numbers, UNKNOWN)[at] == number[wanted]
    found[wanted[there]] = forward[at[there]]
    return found


def _is_backward(device: DeviceTrace, tree: Tree) -> NDArray[np.bool_]:
    of_engine = np.array([name.startswith(_ENGINE) for name in device.names] + [False])[device.name[tree.row]]
    rows, threads = device.rare["forward_thread"]
    behind = np.zeros(len(device), bool)
    behind[rows[threads > 0]] = True
    inside = np.where(of_engine | behind[tree.row], 0, -1).astype(np.int64)
    k.inherit(np.arange(len(inside)), tree.parent, inside)
    return inside >= 0


def _phases(device: DeviceTrace, tree: Tree, forward_of: I64, module: I64) -> I64:
    steps = np.array([name.startswith("Optimizer.") for name in device.names] + [False])[device.name[tree.row]]
    phase = np.full(len(tree.row), -1, np.int64)
    phase[module >= 0] = _FORWARD
    phase[forward_of[forward_of >= 0]] = _FORWARD
    phase[_is_backward(device, tree)] = _BACKWARD
    phase[steps] = _OPTIMIZER
    order = np.arange(len(phase))
    # an operator that is made of others is not a node of autograd; they are
    k.lend(order, tree.parent, phase, _FORWARD, device.is_category("cpu_op")[tree.row])
    k.inherit(order, tree.parent, phase)
    served = _of_engine(device, tree)
    return np.where(served >= 0, served, phase)


def _of_engine(device: DeviceTrace, tree: Tree) -> I64:
    """Phase of operators inside a pass of an inference engine; -1 elsewhere."""
    passes = engine_passes(device)
    code = np.full(len(device), -1, np.int64)
    code[passes.row] = [PHASES.index(one.phase) if one.phase else -1 for one in passes.what]
    inside = code[tree.row]
    k.inherit(np.arange(len(inside)), tree.parent, inside)
    return inside
