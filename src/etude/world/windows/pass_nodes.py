"""Passes of replicas as a job whose nodes have the times of an engine's software.

Every kernel takes its time on the device, times the factor of its kind of work; all-reduces are those of the engine;
gaps between kernels are part of them. What the host does while the device works is a node of its own, and what the
engine does after a pass is part of the pass's last node. Passes are padded to the sizes of graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any

import numpy as np

from etude.cost.traces import ops_of
from etude.kernels.arrays import F64, I64
from etude.machine.system import System
from etude.make.generate import Plan
from etude.make.generate.model import Model
from etude.make.generate.passes import ModelPass, Span, replicas_job
from etude.make.transform.rewrite.rewriting import BEFORE, Rewriting
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.model.trace import Trace
from etude.run.simulate import simulate
from etude.steps import grown
from etude.world.serve.catalogue import PARTS, factors_of, kinds_of_work
from etude.world.serve.network import all_reduce_ns, token_bytes
from etude.world.serve.pass_time import graph_of, host_of
from etude.world.serve.stacks import ServingStack
from etude.world.serve.steps import PassContent, StepCost
from etude.world.serve.stored.window import PassWindow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReplicaSoftware:
    """A model on a replica, and the software that runs it."""

    model: Model
    plan: Plan
    system: System
    stack: ServingStack
    cost: StepCost
    kv_dtype: str = ""


def job_of_passes(on: ReplicaSoftware, moment: PassWindow) -> Job:
    """Replica k of the moment has the k-th ranks; its passes are consecutive, without the time between them."""
    sizes = [[int(graph_of.py_func(on.cost, one)[0]) for one in mine] for mine in moment.contents]
    padded = [
        [_padded(one, size) for one, size in zip(mine, its, strict=True)]
        for mine, its in zip(moment.passes, sizes, strict=True)
    ]
    name = f"{on.model.name}-window"
    job = replicas_job(on.model, on.plan, padded, kv_dtype=on.kv_dtype, name=name)
    run = simulate(job, grown(on.system, len(job)), compute="roofline")
    traces = []
    for k, (contents, more) in enumerate(zip(moment.contents, moment.more_ns, strict=True)):
        part = run.part(k * on.plan.gpus)
        alone = np.where(part.timed, part.end_ns - part.start_ns, 0).astype(np.float64)
        timed = _timed(on, part.trace, alone, contents, np.array(sizes[k], np.float64), more)
        traces.append(_with_host(on, timed, contents))
    return job.replace(traces=tuple(traces))


def _padded(one: ModelPass, size: int) -> ModelPass:
    """With more tokens, up to the size of a graph: sequences of one key, or a longer prompt where none decodes."""
    missing = size - one.tokens
    if missing <= 0:
        return one
    if any(not span.prompt for span in one.spans):
        first = 1 + max(span.request for span in one.spans)
        return replace(one, spans=(*one.spans, *(Span(r, 1, 1) for r in islice(count(first), missing))))
    last = one.spans[-1]
    longer = replace(last, queries=last.queries + missing, keys=last.keys + missing)
    return replace(one, spans=(*one.spans[:-1], longer))


def _timed(
    on: ReplicaSoftware, trace: Trace, alone_ns: F64, contents: Sequence[PassContent], tokens: F64, more_ns: I64
) -> Trace:
    """The nodes with their times; `alone_ns` as on the device by itself."""
    stack, step, passes = on.stack, trace.step, len(contents)
    kind = kinds_of_work(trace, ops_of(trace), on.system.device.busy(), False)
    work, talks = np.append(factors_of(stack), 0.0), kind == PARTS.index("network")
    fused = (kind == PARTS.index("casts")) & (stack.casts == 0.0)
    time_ns = alone_ns * work[kind] + np.where(fused, 0.0, stack.kernel_ns)
    attention = kind == len(PARTS)
    time_ns[attention] += _attention_factors(stack, step[attention], contents) * alone_ns[attention]
    time_ns[talks] += stack.direct * _direct_ns(on, trace, alone_ns, tokens)[talks]
    time_ns[kind == PARTS.index("narrow_experts")] += stack.group_ns
    last = _last_rows(step, passes)
    eager = [int(graph_of.py_func(on.cost, one)[1]) for one in contents]
    own = [host_of.py_func(on.cost, one, its)[1] for one, its in zip(contents, eager, strict=True)]
    words = stack.word_ns * on.model.vocab * np.array([one.outputs for one in contents])
    time_ns[last] += np.array(own) + words + more_ns
    return trace.replace(duration_ns=np.where(step >= 0, np.rint(time_ns), 0).astype(np.int64))


def _last_rows(step: Any, passes: int) -> I64:
    """The last node of each pass."""
    found = np.zeros(passes, np.int64)
    rows = np.flatnonzero(step >= 0)
    np.maximum.at(found, step[rows], rows)
    return found


def _attention_factors(stack: ServingStack, step: Any, contents: Sequence[PassContent]) -> F64:
    """Factors of the kernels of attention, which are in order: of prompts, and after each of them of decodes."""
    found = np.full(len(step), stack.attention)
    for k, one in enumerate(contents):
        mine = np.flatnonzero(step == k)
        if one.decode:
            found[mine[1::2] if one.prompt_tokens else mine] = stack.decode_attention
    return found


def _direct_ns(on: ReplicaSoftware, trace: Trace, alone_ns: F64, tokens: F64) -> F64:
    """Communication as engines have it: ranks that sum tokens read one another's memory; what was scattered need not
    be gathered, and logits are gathered as generated."""
    tp, level = on.plan.tp, on.system.levels[0]
    if not 1 < tp <= level.size:
        return alone_ns
    found, step = np.zeros(len(trace)), trace.step
    sums = np.isin(trace.collective, (int(Collective.ALL_REDUCE), int(Collective.REDUCE_SCATTER)))
    found[sums] = all_reduce_ns(level, tp, token_bytes(on.model, tokens[step[sums]]))
    gathers = np.flatnonzero(trace.collective == int(Collective.ALL_GATHER))
    last = np.full(len(tokens), -1)
    last[step[gathers]] = gathers
    found[last[last >= 0]] = alone_ns[last[last >= 0]]
    return found


def _with_host(on: ReplicaSoftware, trace: Trace, contents: Sequence[PassContent]) -> Trace:
    """With the work of the host during each pass, which the end of the pass waits for."""
    eager = [int(graph_of.py_func(on.cost, one)[1]) for one in contents]
    host = np.array([host_of.py_func(on.cost, one, its)[0] for one, its in zip(contents, eager, strict=True)])
    if not host.any():
        return trace
    last = _last_rows(trace.step, len(contents))
    first = np.concatenate([[0], last[:-1] + 1])
    made = Rewriting(trace)
    nodes = made.add(first, BEFORE, "host", kind=int(Kind.COMP), cpu=1, duration_ns=np.rint(host))
    made.wait(last, nodes)
    made.wait(nodes[1:], last[:-1])
    return made.trace()
