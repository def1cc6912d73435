"""Which pass of a served job ends a request's first and last token, and on which rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from etude.cost.aten_matrix import VARLEN
from etude.kernels.arrays import I64
from etude.make.generate.ranks import RankGrid
from etude.make.generate.serving.batching import TARGET
from etude.make.generate.serving.job import ServedJob
from etude.make.generate.serving.program import in_turn
from etude.make.generate.train.job import is_product
from etude.model.schema import UNKNOWN
from etude.model.trace import Trace


def last_stage(served: ServedJob, copy: int) -> int:
    """Position of a rank whose passes end with tokens of this copy of the model."""
    grid = RankGrid.of(served.plan)
    here = (grid.at["dp"] == copy) & (grid.at["pp"] == served.plan.pp - 1) & (grid.at["tp"] == 0)
    return int(np.flatnonzero(here)[0])


def first_and_last(served: ServedJob, pass_ends_ns: Sequence[I64]) -> tuple[I64, I64]:
    """When each request got its first and its last token, from the end of each pass of each copy."""
    count = len(served.requests)
    first, last = np.full(count, UNKNOWN, np.int64), np.full(count, UNKNOWN, np.int64)
    alike = len({id(instance) for instance in served.instances}) == 1
    for copy, (instance, ends) in enumerate(zip(served.instances, pass_ends_ns, strict=True)):
        shift = copy if alike else 0  # requests are dealt out in turn
        for number, (at, _, one, _) in enumerate(in_turn(instance.batches)):
            if one.which != TARGET:
                continue
            for span in one.spans:
                request = instance.requests[at][span.request] + shift
                if span.last and first[request] == UNKNOWN:  # not when it is recomputed
                    first[request] = ends[number]
                if span.last or not span.prompt:
                    last[request] = max(last[request], ends[number])
    return first, last


def product_flops(served: ServedJob) -> int:
    """FLOPs of the products of all ranks, including attention."""
    each = [_products(trace) for trace in served.job.traces]
    return sum(each[t] for t in served.job.trace_of.tolist())


def _products(trace: Trace) -> int:
    codes, words = trace.coded("name")
    product = np.array([is_product(w) or w == VARLEN for w in words] + [False])[codes]
    return int(trace.flops[product & (trace.flops != UNKNOWN)].sum())
