"""Step costs from a database of measured operators: the operators of generated passes take its times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from etude.cost.aten_matrix import VARLEN
from etude.machine import System
from etude.make.generate import Plan
from etude.make.generate.model import Model
from etude.make.generate.passes import pass_job
from etude.run.simulate import simulate
from etude.steps import grown
from etude.steps.operators import open_ops
from etude.world.serve.catalogue import CHUNKS, DECODE, GRID, KEYS, PAST, SEQUENCES, TOKENS
from etude.world.serve.steps import StepCost, step_cost


def database_cost(
    path: Path, model: Model, system: System, *, tp: int, gaps_ns: float, graphs: Sequence[int]
) -> StepCost:
    """As in `etude predict serve --ops`: operators that are not in the database use the roofline, and communication
    is simulated. `gaps_ns` is the time between kernels of a pass."""
    job = pass_job(model, Plan.from_dict({"gpus": tp, "tp": tp}), GRID)
    part = simulate(job, grown(system, len(job)), compute="ops", ops=open_ops(path)).part(0)
    codes, words = part.trace.coded("name")
    attends = np.array([word == VARLEN for word in words] + [False])[codes]
    time_ns = np.where(part.timed & (part.trace.step >= 0), part.end_ns - part.start_ns, 0).astype(np.float64)
    sums = np.zeros((2, len(GRID)))
    np.add.at(sums, (attends.astype(np.int64), np.maximum(part.trace.step, 0)), time_ns)
    others, attention = sums
    a, b = len(TOKENS), len(TOKENS) + len(SEQUENCES)
    c = b + len(CHUNKS) * len(PAST)
    head_ns = np.maximum(others[a:b] - np.interp(SEQUENCES, TOKENS, others[:a]), 0.0)
    prompt = np.vstack([np.zeros((1, len(PAST))), attention[b:c].reshape(len(CHUNKS), len(PAST))])
    decode = np.vstack([np.zeros((1, len(KEYS))), attention[c:].reshape(len(DECODE), len(KEYS))])
    grid = prompt[:, :, None, None] + decode[None, None]
    axes = ((0, *CHUNKS), PAST, (0, *DECODE), KEYS)
    return step_cost(
        tokens=TOKENS,
        layers_ns=others[:a],
        head=(SEQUENCES, head_ns),
        attention=(*axes, grid),
        graphs=graphs,
        pass_ns=(gaps_ns, gaps_ns),
    )
