"""predict_serving(found, system): a serving job simulated, and when each request got its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from etude.analyse.serving import passes, token_times
from etude.kernels.arrays import I64
from etude.machine.system import System
from etude.make.generate.serving import ServedJob, first_and_last, last_stage, product_flops
from etude.model.run import Run
from etude.run.simulate import Simulated, simulate
from etude.steps.step import grown


@dataclass(frozen=True, slots=True, eq=False)
class ServingPrediction:
    """`answers` has a row for each request."""

    served: ServedJob
    simulated: Simulated
    answers: pa.Table
    system: System

    def _mfu(self) -> float | None:
        """Products over what the devices could have done, dense 16-bit; None where their peak is unknown."""
        could = self.system.peak(self.served.plan.dtype, len(self.served.job))
        if not could:
            return None
        return product_flops(self.served) / (self.simulated.makespan_ns / 1e9) / could

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
        return self.served.summary() | found | self.simulated.choices()


def predict_serving(served: ServedJob, system: System, **options: Any) -> ServingPrediction:
    """Simulated by roofline, or with a database `ops` of measured operators. `options` are those of the simulation."""
    compute = "roofline" if options.get("ops") is None else "ops"
    run = simulate(served.job, grown(system, len(served.job)), **{"compute": compute, **options})
    return ServingPrediction(served, run, answers(served, run), system)


def answers(served: ServedJob, run: Run) -> pa.Table:
    """When each request got its first and its last token. A request that arrives has waited since then; where arrivals
    were left out, since the start."""
    ends = [_pass_ends(served, run, copy) for copy in range(len(served.instances))]
    first, last = first_and_last(served, ends)
    prompt, output, arrival = (
        np.array([getattr(r, name) for r in served.requests], np.int64) for name in ("prompt", "output", "arrival_ns")
    )
    arrival = np.where(served.timed, arrival, 0)
    ttft, tpot = token_times(arrival, first, last, output)
    return pa.table(
        {
            "request": np.arange(len(first)),
            "arrival_ns": arrival,
            "prompt": prompt,
            "output": output,
            "ttft_ns": ttft.astype(np.int64),
            "tpot_ns": pa.array(tpot, mask=np.isnan(tpot)),
            "latency_ns": last - arrival,
        }
    )


def _pass_ends(served: ServedJob, run: Run, copy: int) -> I64:
    """End of each pass on the last stage."""
    found = passes(run.part(last_stage(served, copy)))
    ends = np.zeros(sum(len(batch.passes) for batch in served.instances[copy].batches), np.int64)
    ends[found.step] = found.end_ns
    return ends
