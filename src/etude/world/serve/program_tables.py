"""Step costs of a program of PyTorch: passes of a dry run priced operator by operator, as `simulate` prices a dry job.

    tables = program_tables(ServedProgram("config.json"), system)
    cost = tables.step_cost(stack)                  # with the factors of an engine's software

Layers over tokens are the quickest passes with as many: those of many short sequences, with hardly any attention. What
a prompt or a decode takes beyond its layers counts as its attention, the copies of its cache included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from etude.capture.dry.served import PassPoint
from etude.cost.energy import costs_of
from etude.cost.ops import OpClass
from etude.cost.traces import ops_of
from etude.kernels.arrays import F64, I64
from etude.machine.system import Device, System
from etude.model.schema import Kind
from etude.run.simulate import simulate
from etude.steps import grown
from etude.world.serve.catalogue import PARTS, factors_of, kinds_of_work, work_nj
from etude.world.serve.pass_time import times_ns
from etude.world.serve.stacks import ServingStack
from etude.world.serve.steps import PassContent, StepCost, step_cost

if TYPE_CHECKING:
    from etude.capture.dry.served import DryPasses

KINDS: Final = (*PARTS, "attention", "decode_attention")
NETWORK: Final = PARTS.index("network")


@dataclass(frozen=True, slots=True)
class ServedProgram:
    """A causal language model as a program: `FILE.py:NAME`, or a `config.json` of transformers."""

    spec: str
    answers: tuple[tuple[str, float], ...] = ()
    """Values that the program decides by, by their names."""


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """A program as it is served. Bytes are those of a rank."""

    ranks: int
    kernels: int
    """Of a pass."""
    layers: int
    """0: it does not say."""
    vocabulary: int
    weights_bytes: float
    token_bytes: float
    """What a token adds to the cache."""
    sequence_bytes: float
    """What a sequence has in the cache whatever its tokens are."""
    working_bytes: float
    """Of a pass besides weights and cache, per token."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ProgramTables:
    """Passes of a program on a device of a system, a column for each."""

    points: tuple[PassPoint, ...]
    time_ns: F64
    """(KINDS, passes): by the roofline, without factors."""
    work_nj: F64
    """Energy of the work above that of a busy device, (passes)."""
    facts: ProgramFacts

    def step_cost(self, stack: ServingStack) -> StepCost:
        """Step cost with the factors of a stack: without graphs, each kernel is launched."""
        facts, one = self.facts, self.facts.ranks == 1
        launches = (stack.one_launch_ns if one else stack.launch_ns) * facts.kernels
        tables = tables_of(self.points, self.pass_ns(stack))
        sequences, head_ns = tables.pop("head")
        layers = facts.layers
        return step_cost(
            **tables,
            head=(sequences, head_ns + stack.word_ns * facts.vocabulary * np.array(sequences)),
            floor_ns=(0.0, stack.layer_floor_ns * layers + launches, stack.mixed_floor_ns * layers + launches),
            gaps_ns=stack.kernel_ns * facts.kernels,
            schedule_ns=stack.schedule_ns,
            one_process=one,
            pass_ns=(stack.pass_ns, stack.pass_ns),
            sequence_ns=(stack.sequence_ns, stack.sequence_ns),
        )

    def pass_ns(self, stack: ServingStack) -> F64:
        """Times of all passes on the device, with the factors of a stack."""
        factor = np.array([*factors_of(stack), stack.attention, stack.decode_attention])
        # Whatever the program sends, it sends by NCCL; a stack may have direct transfers alone.
        factor[NETWORK], factor[PARTS.index("direct")] = stack.network or 1.0, 0.0
        return np.asarray(factor @ self.time_ns, np.float64)

    def energy(self, device: Device, stack: ServingStack) -> StepCost:
        """Energy of a pass on one rank above that of an idle device, with the same interface as its time; in
        nanojoules."""
        active = costs_of(device).active_w if device.power_w else 0.0
        return step_cost(**tables_of(self.points, self.work_nj + active * self.pass_ns(stack)))

    def interpolation_error(self) -> tuple[float, float]:
        """Median and largest error at passes of the dry run that the tables leave out."""
        values = self.pass_ns(ServingStack())
        between = [i for i, point in enumerate(self.points) if point.is_between]
        asked = [content_of(self.points[i]) for i in between]
        off = np.abs(times_ns(step_cost(**tables_of(self.points, values)), asked) / values[between] - 1.0)
        return float(np.median(off)), float(off.max())


def program_tables(program: ServedProgram, system: System, *, ranks: int = 1) -> ProgramTables:
    """Dry-runs the passes and prices them."""
    from etude.capture.dry.served import dry_passes

    return price_passes(dry_passes(program.spec, system.device, ranks=ranks, answers=dict(program.answers)), system)


def price_passes(found: DryPasses, system: System) -> ProgramTables:
    part = simulate(found.job, grown(system, len(found.job)), compute="roofline").part(0)
    trace, ops = part.trace, ops_of(part.trace)
    on_device = part.timed & ((trace.cpu == 0) | (trace.kind != int(Kind.COMP)))
    time_ns = np.where(on_device, part.end_ns - part.start_ns, 0).astype(np.float64)
    kind = kinds_of_work(trace, ops, system.device.busy(), False, generated=False)
    kind[ops.op_class == int(OpClass.ATTENTION)] = KINDS.index("attention")
    kind[ops.op_class == int(OpClass.ATTENTION_DECODE)] = KINDS.index("decode_attention")
    sums = [_pass_sums(np.where(kind == k, time_ns, 0.0), trace.step, found) for k in range(len(KINDS))]
    kernels = _pass_sums(on_device.astype(np.float64), trace.step, found)
    facts = ProgramFacts(
        ranks=len(found.job),
        kernels=int(kernels[found.points.index(PassPoint(1, 1))]),
        layers=found.layers,
        vocabulary=found.vocabulary,
        weights_bytes=found.weights_bytes,
        token_bytes=found.token_bytes,
        sequence_bytes=found.sequence_bytes,
        working_bytes=found.working_bytes,
        notes=found.notes,
    )
    spent = work_nj(system.device, ops, time_ns, kind == NETWORK)
    return ProgramTables(found.points, np.array(sums), _pass_sums(spent, trace.step, found), facts)


def _pass_sums(values: F64, step: I64, passes: DryPasses) -> F64:
    """Sums of the values of nodes over each pass; `step` is that of each node."""
    found = np.bincount(np.maximum(step, 0), np.where(step >= 0, values, 0.0), int(passes.step.max()) + 1)
    return np.asarray(found[passes.step], np.float64)


# -- from passes to tables ---------------------------------------------------------------------------------------------


def content_of(point: PassPoint) -> PassContent:
    """A pass of the grid as the loop asks for it."""
    b, n, p = point.batch, point.tokens, point.past
    if n == 1:
        return PassContent(0, 0.0, b, b * (p + 1), b, p + 1)
    return PassContent(b * n, b * (n * p + n * (n + 1) / 2), 0, 0, b, 0)


def tables_of(points: tuple[PassPoint, ...], value: F64) -> dict[str, Any]:
    """`tokens`, `layers_ns`, `head` and `attention` of a step cost, exact at prompts and decodes of the grid."""
    at = {point: float(v) for point, v in zip(points, value, strict=True) if not point.is_between}
    counted = [p for p in at if p.logits > 1]
    sequences = [1, *(p.logits for p in counted)]
    head = np.maximum([0.0, *(at[p] - at[PassPoint(1, p.tokens)] for p in counted)], 0.0)
    tokens = sorted({p.batch * p.tokens for p in at if p.is_short})
    alike = [[p for p in at if p.batch * p.tokens == t and p.logits == 1] for t in tokens]
    # The quickest of the passes with as many tokens: nothing else in it is negative then.
    layers = np.array([max(min(at[p] - _linear(p.batch, sequences, head) for p in all_of), 0.0) for all_of in alike])
    prompts = sorted(p.tokens for p in at if p.batch == 1 and not p.past and p.logits == 1 and p.tokens > 1)
    own = np.array([max(at[PassPoint(1, c)] - _linear(c, tokens, layers), 0.0) for c in prompts])
    pasts = [0, *sorted({p.past for p in at if p.past})]
    prompt = np.array([[0.0] * len(pasts), *(own[:, None] + _later(at, prompts, pasts))])
    batches = sorted({p.batch for p in at if p.past and p.tokens == 1})
    decode = np.zeros((len(batches) + 1, len(pasts)))
    for i, b in enumerate(batches):
        without = _linear(b, tokens, layers) + _linear(b, sequences, head)
        decode[i + 1] = [max(at[PassPoint(b, 1, k)] - without, 0.0) for k in pasts]
    decode[:, 0] = np.minimum(decode[:, 0], decode[:, 1])  # a first token may take another way than later ones
    grid = prompt[:, :, None, None] + decode[None, None, :, :]
    keys = [k + 1 for k in pasts]
    return {
        "tokens": tokens,
        "layers_ns": layers,
        "head": (sequences, head),
        "attention": ([0, *prompts], pasts, [0, *batches], keys, grid),
    }


def _later(at: dict[PassPoint, float], prompts: list[int], pasts: list[int]) -> F64:
    """(Prompts, pasts): what tokens in the cache add to a part of a prompt, linear between the parts that were run."""
    found = np.zeros((len(prompts), len(pasts)))
    for j, past in enumerate(pasts[1:]):
        known = sorted(p.tokens for p in at if p.batch == 1 and p.past == past and p.tokens > 1)
        more = [max(at[PassPoint(1, c, past)] - at[PassPoint(1, c)], 0.0) for c in known]
        if known:
            found[:, j + 1] = [_linear(c, [0, *known], [0.0, *more]) for c in prompts]
    return found


def _linear(x: float, places: Any, values: Any) -> float:
    """Linear between places, and beyond them with the last slope; never below 0."""
    if len(places) == 1:
        return float(values[0])
    i = min(max(int(np.searchsorted(places, x)) - 1, 0), len(places) - 2)
    part = (x - places[i]) / (places[i + 1] - places[i])
    return max(0.0, float(values[i] + part * (values[i + 1] - values[i])))
