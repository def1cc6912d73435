"""An iteration as a CUDA graph: the work of a device without the host that launched it.

Needs only the standard library, NumPy and PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch

from etude.base.errors import UsageError
from etude.run.replay.program import NOTHING, Program, StandInKind, StepKind

READS: Final = frozenset(
    f"aten::{name}"
    for name in (
        "item", "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2", "unique_dim",
        "unique_consecutive",
    )
)  # fmt: skip
"""Operators after which the host waits for a value from the device."""
COPIES: Final = frozenset(("aten::copy_", "aten::_to_copy", "aten::to", "aten::cpu", "aten::cuda"))


def refusals(program: Program, communicates: bool) -> Iterator[str]:
    """The reasons why an iteration cannot be one graph: what the host reads, waits for or sends."""
    steps, names = program.steps, [name.partition(".")[0] for name in program.ops]
    if communicates and (steps.kind == StepKind.COMM).any():
        yield "it communicates"
    rows = steps.row[steps.kind == StepKind.STAND_IN]
    if (program.stand_ins.kind[rows] == StandInKind.HOST).any():
        yield "host work is between its kernels"
    host = np.array([name.startswith("cpu") for name in program.devices], np.bool_)
    on_host = host[program.storages.device[program.slots.storage]]
    found: set[str] = set()
    for row in steps.row[steps.kind == StepKind.CALL].tolist():
        name = names[int(program.calls.op[row])]
        if name not in READS and name not in COPIES:
            continue
        slots = [s for s in (*program.calls.inputs[row], *program.calls.outputs[row]) if s != NOTHING]
        places = {bool(on_host[s]) for s in slots}
        if name in found or places == {True} or (name in COPIES and len(places) < 2):
            continue
        found.add(name)
        yield f"the host reads the result of {name}" if name in READS else f"{name} copies between host and device"


def captured(program: Program, device: torch.device, iteration: Callable[[], None], communicates: bool) -> Any:
    """Captures an iteration, which must have been played before, as a graph. Raises UsageError if that is
    impossible."""
    if device.type != "cuda":
        raise UsageError("a CUDA graph needs a CUDA device", where="--cuda-graph", hint="--device cuda")
    why = next(refusals(program, communicates), "")
    if not why:
        try:
            return _capture(device, iteration)
        except Exception as problem:
            why = (str(problem).splitlines() or [type(problem).__name__])[0][:160]
    raise UsageError(f"an iteration cannot be one CUDA graph: {why}", where="--cuda-graph", hint="leave it out")


def captured_parts(
    program: Program, device: torch.device, parts: Sequence[Callable[[], None]], communicates: bool
) -> list[Any]:
    """A graph of each part of an iteration, to be launched in this order; empty if they cannot be graphs."""
    if device.type != "cuda" or next(refusals(program, communicates), ""):
        return []
    torch.cuda.synchronize(device)
    aside, pool, graphs = torch.cuda.Stream(device), torch.cuda.graph_pool_handle(), []
    try:
        with torch.cuda.stream(aside):
            for part in parts:
                part()
        torch.cuda.synchronize(device)
        for part in parts:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=aside):
                part()
            graphs.append(graph)
    except Exception:  # too little memory, a call that fails: calls are then made one by one
        torch.cuda.synchronize(device)
        return []
    return graphs


def _capture(device: torch.device, iteration: Callable[[], None]) -> Any:
    torch.cuda.synchronize(device)
    aside = torch.cuda.Stream(device)
    with torch.cuda.stream(aside):  # libraries must be initialised on a stream other than the default one
        iteration()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=aside):
        iteration()
    return graph
