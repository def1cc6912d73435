"""Times of passes without their experts, and times of experts by number and tokens, from simulated generated passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import F64, I64
from etude.machine.system_key import SystemKey
from etude.world.fleet.functions.spec import Functions

if TYPE_CHECKING:
    from etude.make.generate.model import Model

EXPERTS: Final = (".experts.up", ".experts.activation", ".experts.down")
WIDTH: Final = 2
"""Bytes per weight."""
NUMBERS: Final = (16, 64)
"""Numbers of experts in a call that are predicted, in addition to 1, top_k and the size of a function."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpertPieces:
    """Times and sizes of one model on one device."""

    beside_ns: I64
    """(pass, layers with experts + 1): time from the end of one layer's experts to the begin of the next."""
    numbers: I64
    rows: I64
    experts_ns: F64
    """(number of experts, tokens of each), at `numbers` and `rows`; interpolated linearly."""
    dense_bytes: int
    """Weights that always stay loaded: attention, gates, shared experts, embedding and head."""
    expert_bytes: int
    experts: int
    top_k: int

    @property
    def layers(self) -> int:
        return self.beside_ns.shape[1] - 1

    def service_ns(self, number: I64, tokens: I64) -> I64:
        """Time of calls with `number` active experts and `tokens` tokens in total, ns."""
        each = tokens / np.maximum(number, 1)
        at = np.clip(np.searchsorted(self.rows, each, "right") - 1, 0, max(len(self.rows) - 2, 0))
        low, high = self.rows[at], self.rows[np.minimum(at + 1, len(self.rows) - 1)]
        part = np.where(high > low, (each - low) / np.maximum(high - low, 1), 0.0)
        found = np.zeros(number.shape)
        for k in range(len(self.rows)):  # interpolates over numbers of experts, for each predicted number of tokens
            weight = np.where(at == k, 1 - part, np.where((at + 1 == k) & (high > low), part, 0.0))
            found += weight * np.interp(number, self.numbers, self.experts_ns[:, k])
        return np.rint(found).astype(np.int64)


def expert_pieces(spec: Functions) -> ExpertPieces:
    from etude.machine import open_system
    from etude.make.generate.model import open_model

    model, system = open_model(spec.model), open_system(spec.system)
    if not model.experts:
        raise UsageError(f"`{model.name}` has no experts", where=spec.model, hint="model: qwen3-30b-a3b")
    if spec.experts_per_function > model.experts:
        problem = f"experts_per_function: {spec.experts_per_function} of {model.experts}"
        raise UsageError(problem, where=spec.model, hint=f"experts_per_function: {model.experts}")
    on = SystemKey.of(system)
    beside, weights, _ = _passes(model, on, spec.prompt, spec.output)
    expert = (3 if model.gated else 2) * model.hidden * (model.expert_ffn or model.ffn) * WIDTH
    held = (beside.shape[1] - 1) * model.experts * expert
    most = min(spec.experts_per_function, model.experts)
    numbers = sorted({n for n in (1, model.top_k, *NUMBERS) if n < most} | {most})
    rows = [1 << k for k in range(0, spec.prompt.bit_length() + 1, 2)]
    rows += [spec.prompt] if rows[-1] < spec.prompt else []
    times = np.array([[_experts(model, on, n, r) for r in rows] for n in numbers])
    return ExpertPieces(
        beside, np.array(numbers), np.array(rows), times, weights - held, expert, model.experts, model.top_k
    )


def _experts(model: Model, on: SystemKey, number: int, rows: int) -> float:
    """Time of a layer with `number` experts that each of `rows` tokens chooses, ns."""
    alone = model.replace(layers=1, experts=number, top_k=number, dense_layers=0, moe_every=1, shared_ffn=0)
    return float(_passes(alone, on, rows, 1)[2][0, 0])


@lru_cache(maxsize=256)
def _passes(model: Model, on: SystemKey, prompt: int, output: int) -> tuple[I64, int, I64]:
    """Times without experts, bytes of all weights, and times of experts (pass, layer); ns."""
    from etude.make.generate import Plan
    from etude.make.generate.serving import Serving, serve
    from etude.steps import predict_serving

    served = serve(model, Plan.from_dict({"gpus": 1}, model.name), Serving(prefill=prompt, decode=output - 1))
    run = predict_serving(served, on.system).simulated
    trace = served.job.trace(0)
    begin, end = run.timing.block(0)
    modules = [trace.text("module", i) for i in range(len(trace))]
    gaps, took = cut(modules, np.asarray(begin), np.asarray(end), output, model.name)
    return gaps, int(served.weights_bytes), took


def cut(modules: Sequence[str], begin: I64, end: I64, passes: int, where: str) -> tuple[I64, I64]:
    """Times without experts (pass, layer + 1) and of experts (pass, layer), ns. A pass begins with the first module.
    Raises UsageError if the number of passes is wrong."""
    starts = np.array([m == modules[0] for m in modules])
    inside = np.array([m.endswith(EXPERTS) for m in modules])
    before = np.concatenate([[False], inside[:-1]])
    after = np.concatenate([inside[1:], [False]])
    first, last = np.flatnonzero(inside & ~before), np.flatnonzero(inside & ~after)
    opened = np.flatnonzero(starts)
    if len(opened) != passes or len(first) % passes or not len(first):
        raise UsageError(f"{len(opened)} passes, but {passes} were expected", where=where)
    closed = np.append(opened[1:] - 1, len(modules) - 1)
    ins = np.column_stack([begin[opened], end[last].reshape(passes, -1)])
    outs = np.column_stack([begin[first].reshape(passes, -1), end[closed]])
    return (outs - ins).astype(np.int64), (end[last] - begin[first]).reshape(passes, -1).astype(np.int64)
