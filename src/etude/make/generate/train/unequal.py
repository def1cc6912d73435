"""with_parts(job, plan, tokens, heads): a job with exchange of heads for tokens (Ulysses) whose context-parallel ranks
have unequal parts of both. Products scale with a rank's tokens, attention with its heads."""

from __future__ import annotations

import numpy as np

from etude.kernels.arrays import F64
from etude.make.generate.maps.shares import check_sum
from etude.make.generate.plan import Plan
from etude.make.generate.ranks import RankGrid
from etude.make.generate.train.lengths import attention_rows, scaled_column
from etude.model.job import Job
from etude.model.schema import Collective


def parts_of(plan: Plan, heads: int, kv_heads: int) -> tuple[F64, F64]:
    """(Tokens, heads) of each context-parallel rank, over an equal part. `heads`: heads that context-parallel ranks
    share, after the split over tensor-parallel ranks."""
    tokens = plan.cp_shares or (plan.seq // plan.cp,) * plan.cp
    own = plan.cp_heads or (heads // plan.cp,) * plan.cp
    check_sum("cp-shares", tokens, plan.seq)
    check_sum("cp-heads", own, heads, heads // kv_heads)
    return np.array(tokens) * plan.cp / plan.seq, np.array(own) * plan.cp / heads


def with_parts(job: Job, plan: Plan, tokens: F64, heads: F64) -> Job:
    """The job with these parts. An exchange of heads for tokens is as large as the larger of a rank's two parts."""
    at = RankGrid.of(plan).at["cp"].tolist()
    values, made = {}, {}
    for rank, cp in enumerate(at):
        key = int(job.trace_of[rank]), cp
        if key not in made:
            trace = job.traces[key[0]]
            core, rest, carried = attention_rows(trace)
            label = np.array([name == "cp" for name in trace.group_slots] + [False])[trace.group]
            exchange = carried & label & (trace.collective == int(Collective.ALL_TO_ALL))
            factor = np.where(core, heads[cp], np.where(exchange, max(tokens[cp], heads[cp]), tokens[cp]))
            made[key] = {
                "flops": scaled_column(trace.flops, core | rest, factor),
                "tensor_bytes": scaled_column(trace.tensor_bytes, core | rest, factor),
                "in_bytes": scaled_column(trace.in_bytes, carried, factor),
                "out_bytes": scaled_column(trace.out_bytes, carried, factor),
            }
        values[rank] = made[key]
    return job.replace(values=values)
