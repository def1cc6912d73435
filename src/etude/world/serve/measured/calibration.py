"""calibrate_bench, calibrate_rows: the stack of an engine as it is on your machines, from what was measured there.

Four constants move, those that decide most of a pass: the device's time for work that is bound by its memory, and for
work that is bound by its matrix units, as factors on the stack that it starts from; the engine's own time for a pass,
and for a sequence of it. They are fitted to one half of what was measured and compared with the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from etude.base.errors import UsageError
from etude.capture.ingest.requests import measured_requests
from etude.cost.stacks import Band
from etude.kernels.arrays import F64
from etude.world.serve.fit import descend
from etude.world.serve.measured.published import predicted_row
from etude.world.serve.requests import Requests, requests_of
from etude.world.serve.results import request_times
from etude.world.serve.serving import Served
from etude.world.serve.stacks import OwnErrors, ServingStack

MEMORY: Final = (
    "products",
    "narrow",
    "experts",
    "wide_experts",
    "narrow_experts",
    "packed_experts",
    "decode_attention",
    "rest",
)
"""Factors of work that is read from memory, and of all else but what is bound by the matrix units."""
PASS_NS, SEQUENCE_NS = 100_000.0, 2_000.0
"""Where the engine's own time begins, if the stack has none."""
SPREAD: Final = {"memory": 0.5, "compute": 0.5, "pass_ns": 2.0, "sequence_ns": 2.0}
"""How far a constant moves, in its logarithm, before that weighs as much as an error of PULL."""
PULL: Final = 0.01
WIDEST: Final = 1.0
"""Errors beyond this, in their logarithm, have no more weight."""
ROUNDS, ROUNDS_OF_ROWS = 20, 6
"""A row takes longer to serve than a run."""
MOST: Final = 2.0
"""Largest factor on the device's work, and its inverse: what is farther off has another cause."""
FIRST: Final = 0.25
"""Weight of an error of a first token, which waits for clients and queues as well."""
FEW: Final = 4
"""Rows or requests from which on half are held out."""
LEAST: Final = 5
"""Held-out rows or requests from which on their errors are ranges."""
FIGURES: Final = ("ttft_s", "tpot_s")
Errors = Callable[[ServingStack, bool], dict[str, F64]]
"""ln(predicted / measured) by figure, of what is held out, or of what is fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedEngine:
    stack: ServingStack
    constants: dict[str, float]
    """Factors on the stack that it started from, and the engine's own times in ns."""
    fitted: int
    held_out: int
    before: dict[str, dict[str, float]]
    """Figure -> median and 90th percentile of |predicted / measured - 1| held out, and their median sign: `p50`, `p90`,
    `bias`; of what was fitted to, where nothing is held out."""
    after: dict[str, dict[str, float]]
    refused: tuple[str, ...] = ()

    def own_errors(self, what: str, *, model: str = "", precision: str = "", ranks: int = 0) -> OwnErrors | None:
        """What is left of what was held out, as its file keeps it; None of too little."""
        if self.held_out < LEAST:
            return None
        bands = {
            name: Band(p50=round(its["p50"], 4), p90=round(its["p90"], 4), rows=self.held_out, source=what)
            for name, its in self.after.items()
        }
        return OwnErrors(figures=bands, model=model, precision=precision, ranks=ranks)

    @property
    def worse(self) -> tuple[str, ...]:
        """Figures that are farther off than before."""
        return tuple(name for name, its in self.after.items() if its["p50"] > self.before[name]["p50"])


def calibrate_engine(base: ServingStack, errors: Errors, source: str, rounds: int = ROUNDS) -> CalibratedEngine:
    """The constants with the least error of the first part, held near those of `base`."""
    start = {
        "memory": 1.0,
        "compute": 1.0,
        "pass_ns": max(base.pass_ns, PASS_NS),
        "sequence_ns": max(base.sequence_ns, SEQUENCE_NS),
    }

    def loss(constants: dict[str, float]) -> float:
        if any(not 1 / MOST <= constants[name] <= MOST for name in ("memory", "compute")):
            return np.inf
        fitted = errors(with_constants(base, constants), False)
        off = sum(
            (FIRST if name == "ttft_s" else 1.0) * float(np.minimum(np.abs(values), WIDEST).mean())
            for name, values in fitted.items()
            if len(values)
        )
        return off + PULL * sum(float(np.log(constants[n] / start[n]) / SPREAD[n]) ** 2 for n in start)

    constants = descend(start, loss, rounds=rounds)
    made = replace(with_constants(base, constants), source=source)
    fitted, held_out = errors(base, False), errors(base, True)
    apart = any(len(values) for values in held_out.values())
    return CalibratedEngine(
        stack=made,
        constants={name: float(f"{value:.4g}") for name, value in constants.items()},
        fitted=_count(fitted),
        held_out=_count(held_out),
        before=_shown(held_out if apart else fitted),
        after=_shown(errors(made, apart)),
    )


def with_constants(base: ServingStack, constants: dict[str, float]) -> ServingStack:
    memory, compute = constants["memory"], constants["compute"]
    moved = {name: round(getattr(base, name) * memory, 4) for name in MEMORY}
    moved |= {
        "dense": round((base.dense or base.products) * compute, 4),
        "attention": round(base.attention * compute, 4),
    }
    return replace(base, **moved, pass_ns=round(constants["pass_ns"]), sequence_ns=round(constants["sequence_ns"]))


def _count(part: dict[str, F64]) -> int:
    return max((len(values) for values in part.values()), default=0)


def _shown(part: dict[str, F64]) -> dict[str, dict[str, float]]:
    found = {}
    for name, values in part.items():
        if len(values):
            off = np.expm1(values)
            half, most = np.quantile(np.abs(off), [0.5, 0.9])
            found[name] = {"p50": float(half), "p90": float(most), "bias": float(np.median(off))}
    return found


# -- a result of a client ----------------------------------------------------------------------------------------------


def bench_stream(path: Path, users: int = 0) -> tuple[Requests, dict[str, F64]]:
    """Requests of a result, and what each took: `ttft_s`, `tpot_s`. `users`: of a closed loop, where the client does
    not say when it sent them."""
    table = measured_requests(path).table
    for name in ("prompt", "output", "ttft_s"):
        if table[name].null_count:
            raise UsageError(f"no `{name}` of some requests", where=str(path), hint="vllm bench serve --save-detailed")
    prompt, output = table["prompt"].to_numpy(), table["output"].to_numpy()
    measured = {name: table[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in FIGURES}
    if users:
        parents = [[i - users] if i >= users else [] for i in range(len(prompt))]
        return requests_of(np.zeros(len(prompt), np.int64), prompt, output, parents=parents), measured
    if table["arrival_s"].null_count:
        raise UsageError(
            "the file does not say when its requests were sent",
            where=str(path),
            hint="--users N, the client's --max-concurrency",
        )
    arrival = (table["arrival_s"].to_numpy() * 1e9).round().astype(np.int64)
    return requests_of(arrival, prompt, output), measured


def calibrate_bench(
    base: ServingStack, measured: dict[str, F64], serve: Callable[[ServingStack], Served], source: str
) -> CalibratedEngine:
    """From one run: fitted to the first half of its requests, compared with the second. `serve` has them served."""
    known = {name: np.isfinite(values) & (values > 0) for name, values in measured.items()}
    count = len(next(iter(measured.values())))
    first = np.arange(count) < (count // 2 if count >= FEW else count)

    def errors(stack: ServingStack, held_out: bool) -> dict[str, F64]:
        times = request_times(serve(stack))
        part = first != held_out
        return {
            name: np.log(times[name][known[name] & part] / values[known[name] & part])
            for name, values in measured.items()
        }

    return calibrate_engine(base, errors, source)


# -- published rows ----------------------------------------------------------------------------------------------------


def calibrate_rows(
    base: ServingStack, rows: Sequence[dict[str, str]], system: str, source: str, advance: Callable[[int], None]
) -> CalibratedEngine:
    """From rows of `etude score`: fitted to every second one, compared with the others."""
    refused: list[str] = []
    usable: list[dict[str, str]] = []
    for number, row in enumerate(rows, 1):
        try:
            predicted_row(row, system=system, stack=base)
            usable.append(row)
        except UsageError as problem:
            refused.append(f"row {number} is refused: {str(problem).splitlines()[0]}")
        advance(1)
    if not usable:
        raise UsageError(f"no row can be predicted: {refused[0] if refused else 'there is none'}")
    first = np.arange(len(usable)) % 2 == 0 if len(usable) >= FEW else np.ones(len(usable), bool)

    def errors(stack: ServingStack, held_out: bool) -> dict[str, F64]:
        off: dict[str, list[float]] = {}
        for row, mine in zip(usable, first.tolist(), strict=True):
            if mine == held_out:
                continue
            found = predicted_row(row, system=system, stack=stack)
            for name, value in found.predicted.items():
                if value > 0 and found.measured[name] > 0 and not name.startswith("power"):
                    off.setdefault(name, []).append(float(np.log(value / found.measured[name])))
        return {name: np.array(values) for name, values in off.items()}

    return replace(calibrate_engine(base, errors, source, ROUNDS_OF_ROWS), refused=tuple(refused))
