"""serve(model, plan, options): the job that answers requests, pass by pass.

Each data-parallel copy of the plan is an *instance* with its own requests. Prompts and decodes go through it as
`batching` combines them. With several pipeline stages there are equally many batches in flight, in turn. With
disaggregation some instances prefill and send keys and values to others, which decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.base.figures import key_of
from etude.base.units import format_bytes
from etude.cost.aten import aten_work
from etude.cost.needs import Quantised, has_weights
from etude.cost.ops import OpTable, width
from etude.machine.system import Device
from etude.make.generate.blocks.ops import Op, bytes_of, in_types
from etude.make.generate.blocks.towers import tower_blocks
from etude.make.generate.model.shape import Family, Model
from etude.make.generate.nodes import Book
from etude.make.generate.plan import Plan
from etude.make.generate.ranks import RankGrid, bind, job_of
from etude.make.generate.serving.batching import Batched, BatchLimits, ModelPass, batch
from etude.make.generate.serving.ops import PassFragments, RankModel
from etude.make.generate.serving.options import Serving
from etude.make.generate.serving.program import Instance, ProgramWriter, stage_layers
from etude.make.generate.serving.requests import Request
from etude.make.generate.train.job import shard_of
from etude.model.job import Job
from etude.model.schema import Kind
from etude.model.totals import totals
from etude.model.trace import Trace


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ServedJob:
    """A job and its totals."""

    model: Model
    plan: Plan
    job: Job
    params: int
    instances: tuple[Instance, ...]
    """What each data-parallel copy does; equal ones are one object."""
    requests: tuple[Request, ...]
    timed: bool
    """Whether requests wait for their arrival."""
    weights_bytes: int
    token_bytes: int
    """Keys and values of a token on a rank."""
    kv_bytes: int
    """Peak of keys and values on a rank."""
    working_bytes: int
    served: RankModel

    @property
    def memory_peak_bytes(self) -> int:
        return self.weights_bytes + self.kv_bytes + self.working_bytes

    def working_of(self, tokens: int) -> int:
        """Activations of a pass of this many tokens."""
        return _working(self.served, tokens)

    def summary(self) -> dict[str, Any]:
        found = totals(self.job, params=self.params, memory_peak_bytes=self.memory_peak_bytes)
        passes = [p for instance in self.instances for b in instance.batches for p in b.passes]
        return found | {
            "requests": len(self.requests),
            "prompt_tokens": sum(r.prompt for r in self.requests),
            "output_tokens": sum(r.output for r in self.requests),
            "passes": {k: sum(p.phase == k for p in passes) for k in dict.fromkeys(p.phase for p in passes)},
            "preemptions": sum(b.stopped for instance in self.instances for b in instance.batches),
            "weights_bytes": self.weights_bytes,
            "kv_peak_bytes": self.kv_bytes,
            **({"assumed": self.model.assumed} if self.model.assumed else {}),
        }


def serve(
    model: Model,
    plan: Plan,
    serving: Serving,
    *,
    requests: Sequence[Request] | None = None,
    draft: Model | None = None,
    device: Device | None = None,
    name: str = "",
    weights: Quantised | None = None,
) -> ServedJob:
    """The job that answers the requests. With a `device`, requests wait for their arrival, with pass times of that
    device. `weights` is the storage type of products if it differs from the model's."""
    _check(model, plan, serving, requests, draft)
    plan = plan.replace(seq=1, micro_batch=1, global_batch=plan.dp)
    local = shard_of(model, plan.replace(seq=plan.tp, sp=_shares(model, plan)))
    served = [RankModel(m, local, serving.kv_dtype or local.dtype) for m in (model, draft) if m is not None]
    alike = requests is None and not serving.disaggregate
    given = tuple(
        requests or [Request(serving.prefill, serving.decode + 1)] * (serving.batch * _readers(plan, serving))
    )
    per_layer = _token_bytes(served[0], plan)
    room = BatchLimits(
        max_batch=serving.max_batch or 1 << 30,
        token_budget=serving.token_budget or 1 << 40,
        chunked=serving.chunked,
        # As many batches as stages are in flight, each with its share of the room.
        kv_tokens=serving.kv_memory_bytes // max(per_layer, 1) // plan.pp if serving.kv_memory_bytes else 1 << 50,
        preempt=serving.preempt,
        speculate=serving.speculate,
        accept=serving.accept,
        seed=serving.seed,
    )
    instances = _instances(given, plan, serving, room, _timer(served, device), alike=alike)
    grid = RankGrid.of(plan)
    traces: list[Trace] = []
    slots: list[tuple[list[str], list[str]]] = []
    program_of = np.zeros((plan.dp, plan.pp), np.int64)
    for number, instance in enumerate(instances[:1] if alike else instances):
        for stage in range(plan.pp):
            program_of[number:, stage] = len(traces)
            writer = ProgramWriter(served, plan, serving.split, given, instance, stage, device is not None)
            trace, groups, peers = writer.trace()
            traces.append(trace)
            slots.append((groups, peers))
    program = program_of[grid.at["dp"], grid.at["pp"]]
    about = {"model": model.name, "serving": "yes"}
    job = job_of(name or f"{model.name}-serve", traces, program, bind(grid, slots, program), about)
    tokens = max((p.tokens for instance in instances for b in instance.batches for p in b.passes), default=1)
    token = sum(_token_bytes(s, plan) for s in served)
    sequences = max((len(p.spans) for instance in instances for b in instance.batches for p in b.passes), default=0)
    states = sequences * sum(max(map(s.state_bytes, stage_layers(s.model.layers, plan.pp))) for s in served)
    held = max(sum(b.kv_tokens for b in instance.batches) for instance in instances)
    return ServedJob(
        model=model,
        plan=plan,
        job=job,
        params=sum(b.params for b in [*served[0].layers(1), served[0].head(1, 1), *tower_blocks(model, local)]),
        instances=tuple(instances),
        requests=given,
        timed=device is not None,
        weights_bytes=sum(_weights(s, plan, weights) for s in served),
        token_bytes=token,
        kv_bytes=held * token + states,
        working_bytes=_working(served[0], tokens),
        served=served[0],
    )


def check_serving_memory(found: ServedJob, limit_bytes: int) -> None:
    """Refuses what does not fit, with the numbers."""
    if not limit_bytes or found.memory_peak_bytes <= limit_bytes:
        return
    parts = {"weights": found.weights_bytes, "keys and values": found.kv_bytes, "activations": found.working_bytes}
    told = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items())
    problem = f"the model does not fit: {format_bytes(found.memory_peak_bytes)} of {format_bytes(limit_bytes)} ({told})"
    hint = "use more --tp or --pp, a smaller --batch, a smaller --kv-memory, or --kv-dtype fp8"
    raise UsageError(problem, where=found.model.name, hint=hint)


def _token_bytes(served: RankModel, plan: Plan) -> int:
    """Bytes of keys and values of a token on the rank with most of them."""
    return served.kv_bytes * max(map(served.kv_layers, stage_layers(served.model.layers, plan.pp)))


def _weights(served: RankModel, plan: Plan, kept: Quantised | None) -> int:
    """Weights of the rank with most: layers of a stage, with the embedding or the head, towers on the first."""
    found = []
    for layers in stage_layers(served.model.layers, plan.pp):
        blocks = PassFragments(served, Book(), layers).blocks(ModelPass((), 1))
        blocks += tower_blocks(served.model, served.local) if not layers.start else []
        params = sum(b.local_params(expert=e) for b in blocks for e in (False, True))
        if layers.start:  # a tied head has a copy where the embedding is elsewhere
            params += sum(op.tied_params for b in blocks for op in b.ops)
        less = _less_bytes([op for b in blocks for op in b.ops], kept, served, layers.start > 0) if kept else 0
        found.append(bytes_of(params, served.local.gemm_dtype) - less)
    return max(found)


def _less_bytes(ops: Sequence[Op], kept: Quantised, served: RankModel, later: bool) -> int:
    """Bytes saved by narrower weights of products. A tied head gets a separate copy, since the embedding is unchanged;
    on a `later` stage it had one anyway."""
    works = OpTable.of([aten_work(op.name, op.in_shapes, in_types(op, op.in_shapes)) for op in ops])
    own, tied = (np.array([getattr(op, name) for op in ops], np.float64) for name in ("local_params", "tied_params"))
    bits = kept.weight_bits(np.maximum(works.k, 1).astype(np.float64))
    wide = 8.0 * width(served.local.gemm_dtype)
    less = own * (wide - bits) + tied * ((wide if later else 0.0) - bits)
    return int(less[has_weights(works)].sum() / 8)


def _working(served: RankModel, tokens: int) -> int:
    """Activations of a pass: the residual stream twice, and the widest tensor of a layer."""
    m, local = served.model, served.local
    wide = max((2 if m.gated else 1) * m.ffn, (m.heads + 2 * m.kv) * m.head if m.heads else 0) // local.tp
    wide = max(wide, 2 * m.ssm_heads * m.ssm_head_size // local.tp)
    return bytes_of(served.padded(tokens) * (2 * m.hidden + wide), local.dtype)


def _check(model: Model, plan: Plan, serving: Serving, requests: Sequence[Request] | None, draft: Model | None) -> None:
    if model.family != Family.DECODER:
        raise UsageError(f"`{model.name}` is of family `{model.family}`, but only decoders are served")
    usual = Plan()
    for f in fields(Plan):
        if f.name not in Serving.AXES and getattr(plan, f.name) != getattr(usual, f.name):
            raise UsageError(
                f"--{key_of(f).replace('_', '-')} applies only to training", hint="leave it out, or leave out --serve"
            )
    if plan.ep * plan.etp > 1 and not model.experts:
        raise UsageError(f"`{model.name}` has no experts", hint="leave out --ep or --etp")
    if bool(draft) != bool(serving.speculate):
        raise UsageError(
            "speculation needs a draft model and a number of tokens", hint="--draft qwen3-0.6b --speculate 4"
        )
    if draft is not None and (plan.pp > 1 or serving.disaggregate):
        raise UsageError("speculation needs one stage and no disaggregation", hint="--tp")
    readers, makers = serving.split
    if readers and readers + makers != plan.dp:
        hint = f"--gpus {(readers + makers) * plan.tp * plan.pp}"
        raise UsageError(f"{readers} + {makers} instances, but the plan has {plan.dp}", hint=hint)
    if readers and plan.pp > 1:
        raise UsageError("disaggregated instances must have one stage", hint="--tp")
    if plan.ep > 1 and plan.ep * plan.etp > plan.tp and (requests is not None or readers):
        hint = "leave out --requests, or an --ep of at most --tp"
        raise UsageError("experts spread over several instances need the same passes on all of them", hint=hint)


def _shares(model: Model, plan: Plan) -> bool:
    """Whether tokens are split between tensor-parallel ranks, as with experts."""
    return bool(model.experts) and plan.tp > 1


def _readers(plan: Plan, serving: Serving) -> int:
    """Instances that receive requests."""
    return serving.split[0] or plan.dp


def _timer(served: Sequence[RankModel], device: Device | None) -> Any:
    """Time of a pass on a device: products and bytes by roofline, op by op; communication left out."""
    if device is None:
        return None
    from etude.cost.compute import compute_time_ns

    known: dict[tuple[int, int, int], tuple[float, int]] = {}

    def time_ns(one: ModelPass) -> float:
        s = served[one.which]
        key = one.which, one.tokens, one.outputs
        if key not in known:
            passes = PassFragments(s, Book(), range(s.model.layers))
            ops = [op for b in passes.blocks(one) for op in b.ops if op.kind == Kind.COMP and not op.core]
            known[key] = _roofline(ops), s.kv_layers(range(s.model.layers))
        fixed, layers = known[key]
        attend = layers * _roofline([s.attention(one.spans, s.model.window, "")]) if layers else 0.0
        return fixed + attend

    def _roofline(ops: Sequence[Op]) -> float:
        table = OpTable.plain(np.array([op.flops for op in ops]), np.array([op.size_bytes for op in ops]))
        return float(compute_time_ns(device, table).sum())

    return time_ns


def _instances(
    requests: Sequence[Request], plan: Plan, serving: Serving, room: BatchLimits, time_ns: Any, *, alike: bool
) -> list[Instance]:
    """Requests assigned round robin, to instances and to the batches that an instance has in flight."""
    readers, makers = serving.split
    count = readers or plan.dp
    found = []
    for i in range(count if not alike else 1):
        mine = range(i, len(requests), count)
        parts = [list(mine[j :: plan.pp]) for j in range(plan.pp)]
        parts = [part for part in parts if part] or [[]]
        short = [[_prompt_only(requests[r]) if readers else requests[r] for r in part] for part in parts]
        found.append(Instance([batch(part, room, time_ns) for part in short], parts, makes=not readers))
    if alike:
        found *= count
    if readers:
        found += _makers(requests, makers, room, time_ns)
    return found


def _prompt_only(request: Request) -> Request:
    return Request(request.prompt, 1, request.arrival_ns)


def _makers(requests: Sequence[Request], makers: int, room: BatchLimits, time_ns: Any) -> list[Instance]:
    """Instances that decode: a request arrives with its prompt's keys and values, so its prompt takes no pass."""
    found = []
    for j in range(makers):
        mine = list(range(j, len(requests), makers))
        batched = batch([requests[r] for r in mine], room, time_ns)
        tokens = [
            (ModelPass(spans, len(spans)), held)
            for p, held in zip(batched.passes, batched.held, strict=True)
            if (spans := tuple(s for s in p.spans if not s.prompt))
        ]
        made = Batched([p for p, _ in tokens], batched.kv_tokens, [held for _, held in tokens])
        found.append(Instance([made], [mine], reads=False))
    return found
