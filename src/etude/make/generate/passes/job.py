"""pass_job(model, plan, shapes): a job that runs passes of these shapes; replicas_job: passes of given requests on
several replicas; and what a replica of the model holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.ranks import RankGrid, bind, job_of
from etude.make.generate.serving.batching import Batched, ModelPass, Span
from etude.make.generate.serving.job import ServedJob, serve
from etude.make.generate.serving.options import Serving
from etude.make.generate.serving.program import Instance, ProgramWriter
from etude.make.generate.serving.requests import Request
from etude.model.job import Job


@dataclass(frozen=True, slots=True)
class PassShape:
    """A piece of `chunk` prompt tokens after `past` others, together with `decode` sequences that attend to `keys`
    tokens each, including their new one."""

    chunk: int = 0
    past: int = 0
    decode: int = 0
    keys: int = 0

    def spans(self) -> tuple[Span, ...]:
        prompt = (Span(0, self.chunk, self.past + self.chunk, prompt=True, last=True),) if self.chunk else ()
        return prompt + tuple(Span(1 + k, 1, self.keys) for k in range(self.decode))


@dataclass(frozen=True, slots=True)
class RankBytes:
    """Bytes that a rank of a replica holds."""

    weights_bytes: int
    token_bytes: int
    """Keys and values of a token."""
    working_bytes: int


def pass_job(model: Model, plan: Plan, shapes: Sequence[PassShape], *, kv_dtype: str = "") -> Job:
    """The job of one replica; pass k of it is step k. Its ranks are those of the plan, with one stage; where these are
    several data-parallel copies that share experts, all run passes of these shapes."""
    passes = [ModelPass(spans, len(spans)) for spans in (s.spans() for s in shapes)]
    return replicas_job(model, plan, [passes], kv_dtype=kv_dtype)


def replicas_job(
    model: Model, plan: Plan, passes: Sequence[Sequence[ModelPass]], *, kv_dtype: str = "", name: str = ""
) -> Job:
    """The job of several replicas, each a copy of the plan with its own passes in sequence; pass k of a replica is its
    step k; passes of one replica alone are those of all copies of the plan. Requests of spans are numbered from 0
    within a replica."""
    plan = plan.replace(gpus=plan.gpus * len(passes))
    made = _one(model, plan, kv_dtype)
    traces, slots = [], []
    for mine in passes:
        most = 1 + max((span.request for one in mine for span in one.spans), default=0)
        instance = Instance([Batched(list(mine))], [list(range(most))])
        writer = ProgramWriter([made.served], made.plan, (0, 0), [Request(1)] * most, instance, 0, arrivals=False)
        trace, groups, peers = writer.trace()
        traces.append(trace)
        slots.append((groups, peers))
    grid = RankGrid.of(made.plan)
    program = grid.at["dp"] * (len(passes) > 1)
    about = {"model": model.name, "serving": "yes"}
    return job_of(name or f"{model.name}-passes", traces, program, bind(grid, slots, program), about)


def held_by(model: Model, plan: Plan, tokens: int, *, kv_dtype: str = "") -> RankBytes:
    """Bytes on a rank, with passes of this many tokens."""
    made = _one(model, plan, kv_dtype)
    return RankBytes(made.weights_bytes, made.token_bytes, made.working_of(tokens))


def _one(model: Model, plan: Plan, kv_dtype: str) -> ServedJob:
    """A minimal served job of this model and plan, for the values it derives from both."""
    return serve(model, plan, Serving(prefill=1, decode=0, batch=1, kv_dtype=kv_dtype))
