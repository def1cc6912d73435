"""predict_serving(found, system): a serving job simulated, and when each request got its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.analyse.serving import passes, token_times
from etude.generate.ranks import Grid
from etude.generate.serving import ServedJob
from etude.generate.serving.batching import TARGET
from etude.generate.serving.ops import ATTENTION
from etude.generate.serving.program import Instance, in_turn
from etude.generate.train.job import is_product
from etude.machine.system import System
from etude.model.run import Run
from etude.model.schema import UNKNOWN
from etude.model.trace import Trace
from etude.predict.step import grown
from etude.simulate import Simulated, simulate

I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ServingPrediction:
    """`answers` has a row for each request."""

    served: ServedJob
    simulated: Simulated
    answers: pa.Table
    system: System

    def _mfu(self) -> float:
        """Products over what the devices could have done, dense 16-bit."""
        job, plan = self.served.job, self.served.plan
        each = [_products(trace) for trace in job.traces]
        done = sum(each[t] for t in job.trace_of.tolist())
        return done / (self.simulated.makespan_ns / 1e9) / (self.system.device.peak(plan.dtype) * len(job))

    def summary(self) -> dict[str, Any]:
        """Times are in ns; tokens per second are tokens out, of all ranks and of one."""
        makespan = self.simulated.makespan_ns
        out = sum(r.output for r in self.served.requests)
        rate = out / (makespan / 1e9) if makespan else 0.0
        found: dict[str, Any] = {
            "makespan_ns": makespan,
            "step_time_ns": makespan,
            "mfu": self._mfu(),
            "tokens_per_s": rate,
            "tokens_per_s_per_gpu": rate / len(self.served.job),
        }
        for name in ("ttft_ns", "tpot_ns", "latency_ns"):
            values = self.answers[name].drop_null().to_numpy()
            if len(values):
                found[name] = {
                    "mean": float(values.mean()),
                    "p50": float(np.quantile(values, 0.5)),
                    "p99": float(np.quantile(values, 0.99)),
                }
        return self.served.summary() | found


def predict_serving(served: ServedJob, system: System, **options: Any) -> ServingPrediction:
    """Simulated by roofline. `options` are those of the simulation."""
    run = simulate(served.job, grown(system, len(served.job)), **{"compute": "roofline", **options})
    return ServingPrediction(served, run, answers(served, run), system)


def _products(trace: Trace) -> int:
    codes, words = trace.coded("name")
    product = np.array([is_product(w) or w == ATTENTION for w in words] + [False])[codes]
    return int(trace.flops[product & (trace.flops != UNKNOWN)].sum())


def answers(served: ServedJob, run: Run) -> pa.Table:
    """When each request got its first and its last token. A request that arrives has waited since then; where arrivals
    were left out, since the start."""
    count = len(served.requests)
    first, last = np.full(count, UNKNOWN, np.int64), np.full(count, UNKNOWN, np.int64)
    alike = len({id(instance) for instance in served.instances}) == 1
    for copy, instance in enumerate(served.instances):
        ends = _ends(served, run, copy, instance)
        shift = copy if alike else 0  # requests are dealt out in turn
        for number, (at, _, one, _) in enumerate(in_turn(instance.batches)):
            if one.which != TARGET:
                continue
            for span in one.spans:
                request = instance.requests[at][span.request] + shift
                if span.last and first[request] == UNKNOWN:  # not when it reads again
                    first[request] = ends[number]
                if span.last or not span.prompt:
                    last[request] = max(last[request], ends[number])
    prompt, output, arrival = (
        np.array([getattr(r, name) for r in served.requests], np.int64) for name in ("prompt", "output", "arrival_ns")
    )
    arrival = np.where(served.timed, arrival, 0)
    ttft, tpot = token_times(arrival, first, last, output)
    return pa.table(
        {
            "request": np.arange(count),
            "arrival_ns": arrival,
            "prompt": prompt,
            "output": output,
            "ttft_ns": ttft.astype(np.int64),
            "tpot_ns": pa.array(tpot, mask=np.isnan(tpot)),
            "latency_ns": last - arrival,
        }
    )


def _ends(served: ServedJob, run: Run, copy: int, instance: Instance) -> I64:
    """End of each pass on the last stage."""
    grid = Grid.of(served.plan)
    here = (grid.at["dp"] == copy) & (grid.at["pp"] == served.plan.pp - 1) & (grid.at["tp"] == 0)
    found = passes(run.part(int(np.flatnonzero(here)[0])))
    ends = np.zeros(sum(len(b.passes) for b in instance.batches), np.int64)
    ends[found.step] = found.end_ns
    return ends
