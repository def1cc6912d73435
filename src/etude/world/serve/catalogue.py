"""Step costs of a model on a system of the catalogue: passes of many shapes generated and simulated once, node by node,
communication included; added up by kind of work, kept on disk, and interpolated.

    tables = pass_tables(model, plan, system)       # seconds the first time, milliseconds afterwards
    cost = tables.step_cost(stack)                  # with the factors of an engine's software
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.files import writing
from etude.base.shapes import names_in
from etude.cost.aten_matrix import VARLEN
from etude.cost.compute import compute_time_ns, cost_of, memory_ns, peaks_of
from etude.cost.energy import at_work_w, costs_of
from etude.cost.ops import DTYPE_NUMBER, EXPERTS, NARROW, OpClass, OpTable
from etude.cost.traces import ops_of
from etude.kernels.arrays import F64
from etude.machine.system import Device, System
from etude.make.generate import Plan
from etude.make.generate.model import Model
from etude.make.generate.passes import PassShape, held_by, pass_job
from etude.model.schema import Collective, Kind
from etude.model.trace import Trace
from etude.run.simulate import simulate
from etude.steps import grown
from etude.world.serve.network import gathered_ns, reduced_ns
from etude.world.serve.pass_time import times_ns
from etude.world.serve.stacks import ServingStack
from etude.world.serve.steps import PassContent, StepCost, step_cost

PARTS: Final = names_in("""
    products dense narrow experts wide_experts narrow_experts packed_experts rest casts network direct group_ns word_ns
""")
"""Kinds of work: products in 16 bits or more (`dense`: bound by the matrix units) and in fewer, those of experts in 16
(`wide`: spread over ranks, and fewer on a rank than tokens), 8 and 4, all else, casts to narrow types (which engines
may have in the kernel before), communication as generated, and as in engines (a stack uses one of the two); and what
the catalogue has no time for: the number of 8-bit products of experts, and the vocabulary that output tokens are
sampled from."""
TOKENS: Final = (
    1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384,
)  # fmt: skip
SEQUENCES: Final = (1, 4, 16, 64, 128, 256, 512, 1024)
DECODE: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
KEYS: Final = (1, 128, 512, 1024, 2048, 4096, 16384, 65536)
CHUNKS: Final = (16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PAST: Final = (0, 1024, 4096, 16384, 65536)
GRID: Final = (
    *(PassShape(chunk=t) for t in TOKENS),
    *(PassShape(decode=s, keys=1) for s in SEQUENCES),
    *(PassShape(chunk=c, past=p) for c in CHUNKS for p in PAST),
    *(PassShape(decode=n, keys=k) for n in DECODE for k in KEYS),
)
BETWEEN: Final = (
    *(PassShape(chunk=(a + b) // 2) for a, b in pairwise(TOKENS[8:])),
    *(PassShape(chunk=(a + b) // 2, past=(p + q) // 2) for a, b in pairwise(CHUNKS[4:]) for p, q in pairwise(PAST[:4])),
    *(
        PassShape(decode=(a + b) // 2, keys=(k + m) // 2)
        for a, b in pairwise(DECODE[2:9])
        for k, m in pairwise(KEYS[2:7])
    ),
    *(PassShape(chunk=c, past=200, decode=n, keys=700) for c, n in ((90, 6), (300, 40), (1800, 200))),
)
"""Shapes at which the error of the interpolation is measured: midpoints of intervals, and prompts mixed with
decodes."""


CAST: Final = "aten::_to_copy"


def factors_of(stack: ServingStack) -> F64:
    """Factors of a stack on the times of PARTS."""
    given = {name: float(getattr(stack, name)) for name in PARTS}
    return np.array([*(given | {"dense": given["dense"] or given["products"]}).values()])


@dataclass(frozen=True, slots=True, eq=False)
class PassTables:
    """Times in ns by kind of work (a row each, as PARTS) and shape; bytes of a rank."""

    layers_ns: F64
    """(part, TOKENS)."""
    head_ns: F64
    """(part, SEQUENCES): what logits of more than one token add."""
    prompt_ns: F64
    """Attention of prompts: (CHUNKS, PAST)."""
    decode_ns: F64
    """(DECODE, KEYS)."""
    layers_nj: F64
    """Energy of the FLOPs, bytes and messages in all layers, without what running kernels draw: (TOKENS);
    nanojoules."""
    head_nj: F64
    prompt_nj: F64
    decode_nj: F64
    kernels: F64
    """Kernels per pass, and how many of them are casts."""
    layers: F64
    ranks: F64
    slots: F64
    """Sequences that fill a device if each has a core for each head of keys."""
    weights_bytes: F64
    token_bytes: F64
    working_bytes: F64
    """Per token of a pass."""
    error: F64
    """Error of the interpolation at shapes between the points: median and largest, relative to the node-level times."""

    def energy(self, device: Device, stack: ServingStack) -> StepCost:
        """Energy of a pass on one rank above that of an idle device, with the same interface as its time, in
        nanojoules: that of the work, and the power of running kernels for as long as the device computes with the
        factors of a stack. Between kernels and while the host works it draws idle power."""
        watts = factors_of(stack) * watts_of_parts(device)
        active = costs_of(device).active_w if device.power_w else 0.0
        prompts, tokens = (
            work + active * factor * time
            for work, factor, time in (
                (self.prompt_nj, stack.attention, self.prompt_ns),
                (self.decode_nj, stack.decode_attention, self.decode_ns),
            )
        )
        prompt, decode = np.vstack([np.zeros((1, len(PAST))), prompts]), np.vstack([np.zeros((1, len(KEYS))), tokens])
        grid = prompt[:, :, None, None] + decode[None, None, :, :]
        return step_cost(
            tokens=TOKENS,
            layers_ns=self.layers_nj + watts @ self.layers_ns,
            head=(SEQUENCES, self.head_nj + watts @ self.head_ns),
            attention=((0, *CHUNKS), PAST, (0, *DECODE), KEYS, grid),
        )

    def step_cost(self, stack: ServingStack, **options: Any) -> StepCost:
        """Step cost with the factors of a stack; `options` are those of `steps.step_cost` that an engine sets, or for
        layers that are not all on the device."""
        factor = factors_of(stack)
        prompt = np.vstack([np.zeros((1, len(PAST))), stack.attention * self.prompt_ns])
        decode = np.vstack([np.zeros((1, len(KEYS))), stack.decode_attention * self.decode_ns])
        grid = prompt[:, :, None, None] + decode[None, None, :, :]
        layers, one = float(self.layers[0]), bool(self.ranks[0] == 1)
        kernels = float(self.kernels[0]) - (float(self.kernels[1]) if stack.casts == 0.0 else 0.0)
        launches = (stack.one_launch_ns if one else stack.launch_ns) * kernels
        layers_given: dict[str, Any] = {"tokens": TOKENS, "layers_ns": factor @ self.layers_ns} | options
        return step_cost(
            head=(SEQUENCES, factor @ self.head_ns),
            attention=((0, *CHUNKS), PAST, (0, *DECODE), KEYS, grid),
            floor_ns=(0.0, stack.layer_floor_ns * layers + launches, stack.mixed_floor_ns * layers + launches),
            chain_ns=(stack.chain_ns * layers, float(self.slots[0])),
            gaps_ns=stack.kernel_ns * kernels,
            schedule_ns=stack.schedule_ns,
            one_process=one,
            pass_ns=(stack.pass_ns, stack.pass_ns),
            sequence_ns=(stack.sequence_ns, stack.sequence_ns),
            **layers_given,
        )


def pass_tables(
    model: Model,
    plan: Plan,
    system: System,
    *,
    kv_dtype: str = "",
    packed: float = 1.0,
    groups: int = 1,
    keep: bool = True,
) -> PassTables:
    """From disk if made before by the same code, otherwise made now. `packed`: bytes of the experts' weights over those
    of the plan's precision. `keep=False` does not use the disk.

    Experts that are spread over the tensor-parallel ranks of a plan see all tokens, as in vLLM, and the fullest rank
    decides. With `groups` data-parallel groups they take the tokens of all groups, and are spread over all their
    ranks."""
    asked = model, plan, system, kv_dtype, packed, groups
    if not keep:
        return _made(*asked)
    path = steps_folder() / f"{_digest(*asked)}.npz"
    found = _read(path)
    if found is None:
        found = _made(*asked)
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing(path, force=True, own=True) as temporary, temporary.open("wb") as file:
            np.savez(file, **{f.name: getattr(found, f.name) for f in fields(PassTables)})
    return found


def _read(path: Path) -> PassTables | None:
    try:
        with np.load(path) as stored:
            return PassTables(**{f.name: stored[f.name] for f in fields(PassTables)})
    except (OSError, KeyError, ValueError):
        return None


def steps_folder() -> Path:
    """Where step costs are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "etude" / "steps"


def _digest(*given: Any) -> str:
    """Hash of the inputs, and of the code and catalogues that determine the result."""
    return hashlib.sha256(repr(given).encode() + code_digest()).hexdigest()[:32]


@cache
def code_digest(*more: str) -> bytes:
    """Hash of the code and catalogues that determine step costs, and of further folders of the package."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    files = [Path(__file__), Path(__file__).parent / "network.py"]
    for room in ("cost", "make/generate", "machine", "run/simulate", *more):
        files += [path for path in sorted((root / room).rglob("*")) if path.suffix in (".py", ".yaml")]
    for path in files:
        stat = path.stat()
        digest.update(f"{path.relative_to(root)}{stat.st_size}{stat.st_mtime_ns}".encode())
    return digest.digest()


def experts_ns(model: Model, system: System, packed: float) -> F64:
    """Times of the experts of one layer on one device of a system, for the tokens of TOKENS; also kept on disk."""
    path = steps_folder() / f"{_digest('experts', model, system, packed)}.npy"
    try:
        return np.asarray(np.load(path), np.float64)
    except (OSError, ValueError):
        found = _experts(model, system, packed)
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path, force=True, own=True) as temporary, temporary.open("wb") as file:
        np.save(file, found)
    return found


def _experts(model: Model, system: System, packed: float) -> F64:
    layer = model.replace(layers=1, dense_layers=0)
    job = pass_job(layer, Plan.from_dict({"gpus": 1}), [PassShape(chunk=t) for t in TOKENS])
    part = simulate(job, grown(system, len(job)), compute="roofline").part(0)
    ops, time_ns = ops_of(part.trace), (part.end_ns - part.start_ns).astype(np.float64)
    if packed != 1.0:
        ops, time_ns = _packed(system.device, ops, time_ns, packed)
    mine = np.isin(ops.op_class, EXPERTS) & part.timed & (part.trace.step >= 0)
    return np.bincount(part.trace.step[mine], time_ns[mine], len(TOKENS)).astype(np.float64)


def _made(model: Model, plan: Plan, system: System, kv_dtype: str, packed: float, groups: int) -> PassTables:
    spread = plan.ep * groups
    if spread > 1:
        # Every rank sees every token, and sums are reduced over ranks: the messages of split experts.
        plan = dataclasses.replace(plan, ep=1, etp=plan.tp)
    shapes = [*GRID, *BETWEEN]
    job = pass_job(model, plan, shapes, kv_dtype=kv_dtype)
    run = simulate(job, grown(system, len(job)), compute="roofline")
    part = run.part(0)
    trace, time_ns = part.trace, np.where(part.timed, part.end_ns - part.start_ns, 0).astype(np.float64)
    ops = ops_of(trace)
    kind = kinds_of_work(trace, ops, system.device.busy(), packed != 1.0)
    casts = kind == PARTS.index("casts")
    if packed != 1.0:
        ops, time_ns = _packed(system.device, ops, time_ns, packed)
    sums = np.zeros((len(PARTS) + 1, len(shapes)))
    np.add.at(sums, (kind, np.maximum(trace.step, 0)), np.where(trace.step >= 0, time_ns, 0.0))
    work = np.zeros_like(sums)
    spent = work_nj(system.device, ops, time_ns, kind == PARTS.index("network"))
    np.add.at(work, (kind, np.maximum(trace.step, 0)), np.where(trace.step >= 0, spent, 0.0))
    others, attention = sums[:-1], sums[-1]
    tokens = np.array([float(s.chunk + s.decode) for s in shapes])
    network, direct = PARTS.index("network"), PARTS.index("direct")
    others[direct] = others[network]
    if 1 < plan.tp <= system.levels[0].size:
        others[direct] = _sent(trace, time_ns, len(shapes), (model, system, plan.tp, tokens))
    if spread > 1:
        for experts in (PARTS.index(name) for name in PARTS if name.endswith("experts")):
            others[experts] = _of_groups(others[experts], tokens, groups) * fullest(model, spread, tokens * groups)
            work[experts] = _of_groups(work[experts], tokens, groups)
        others[[network, direct]] += gathered_ns(model, system, groups, tokens)
        wide = tokens * groups > model.experts // spread
        others[PARTS.index("wide_experts")] = np.where(wide, others[PARTS.index("experts")], 0.0)
        others[PARTS.index("experts"), wide] = 0.0
    narrow = kind == PARTS.index("narrow_experts")
    others[PARTS.index("group_ns")] = np.bincount(trace.step[narrow], minlength=len(shapes))
    energy = work[:-1].sum(axis=0)
    a, b = len(TOKENS), len(TOKENS) + len(SEQUENCES)
    c, d = b + len(CHUNKS) * len(PAST), len(GRID)
    at_sequences = np.array([np.interp(SEQUENCES, TOKENS, row) for row in others[:, :a]])
    head_ns = np.maximum(others[:, a:b] - at_sequences, 0.0)
    head_ns[PARTS.index("word_ns")] = model.vocab * np.array(SEQUENCES)
    held, working = held_by(model, plan, 1, kv_dtype=kv_dtype), held_by(model, plan, 4096, kv_dtype=kv_dtype)
    made = PassTables(
        layers_ns=others[:, :a],
        head_ns=head_ns,
        prompt_ns=attention[b:c].reshape(len(CHUNKS), len(PAST)),
        decode_ns=attention[c:d].reshape(len(DECODE), len(KEYS)),
        layers_nj=energy[:a],
        head_nj=np.maximum(energy[a:b] - np.interp(SEQUENCES, TOKENS, energy[:a]), 0.0),
        prompt_nj=work[-1, b:c].reshape(len(CHUNKS), len(PAST)),
        decode_nj=work[-1, c:d].reshape(len(DECODE), len(KEYS)),
        kernels=np.array([float((trace.step == 0).sum()), float((casts & (trace.step == 0)).sum())]),
        layers=np.array([float(model.layers)]),
        ranks=np.array([float(plan.tp)]),
        slots=np.array([system.device.cores / max(model.kv // plan.tp, 1) if model.heads else 1.0]),
        weights_bytes=np.array([float(held.weights_bytes)]),
        token_bytes=np.array([float(held.token_bytes)]),
        working_bytes=np.array([working.working_bytes / 4096]),
        error=np.zeros(2),
    )
    between = others[:direct, d:].sum(axis=0) + attention[d:]
    return dataclasses.replace(made, error=_error(made, between))


def _error(made: PassTables, node_level_ns: F64) -> F64:
    """Error of the interpolated times of BETWEEN."""
    asked = [
        PassContent(
            s.chunk,
            s.chunk * s.past + s.chunk * (s.chunk + 1) / 2,
            s.decode,
            s.decode * s.keys,
            s.decode + bool(s.chunk),
            s.keys,
        )
        for s in BETWEEN
    ]
    off = np.abs(times_ns(made.step_cost(ServingStack()), asked) / node_level_ns - 1.0)
    return np.array([np.median(off), off.max()])


def _sent(trace: Trace, time_ns: F64, passes: int, asked: tuple[Model, System, int, F64]) -> F64:
    """Communication of each pass: an engine sums the tokens of split layers by all-reduces, where a generated pass
    scatters the sums and gathers them again; the last one gathers the logits."""
    sums = np.isin(trace.collective, (int(Collective.ALL_REDUCE), int(Collective.REDUCE_SCATTER)))
    model, system, ranks, tokens = asked
    found = np.asarray(reduced_ns(model, system, ranks, tokens, np.bincount(trace.step[sums], minlength=passes)))
    rows = np.flatnonzero(trace.collective == int(Collective.ALL_GATHER))
    last = np.full(passes, -1)
    last[trace.step[rows]] = rows  # the last of each
    return found + np.where(last >= 0, time_ns[last], 0.0)


def _of_groups(row: F64, tokens: F64, groups: int) -> F64:
    """Times of experts for the tokens of all groups, each rank with its share; `row` begins with the shapes of
    TOKENS."""
    all_of = tokens * groups
    return np.interp(all_of, TOKENS, row[: len(TOKENS)]) * np.maximum(all_of / TOKENS[-1], 1.0) / groups


def fullest(model: Model, spread: int, tokens: F64) -> F64:
    """Active experts on the fullest of `spread` ranks over those on an average rank, if tokens choose uniformly at
    random."""
    held = model.experts // spread
    chosen = 1.0 - (1.0 - model.top_k / model.experts) ** np.asarray(tokens, np.float64)
    counts = np.arange(held + 1)
    ways = np.array([math.comb(held, k) for k in counts], np.float64)
    exactly = ways * chosen[:, None] ** counts * (1.0 - chosen[:, None]) ** (held - counts)
    at_most = np.minimum(np.cumsum(exactly, axis=1), 1.0)
    return (1.0 - at_most[:, :-1] ** spread).sum(axis=1) / (held * chosen)


def _packed(device: Device, ops: OpTable, time_ns: F64, packed: float) -> tuple[OpTable, F64]:
    """Products of experts whose weights are stored packed, and computed unpacked."""
    rows = np.flatnonzero(np.isin(ops.op_class, EXPERTS))
    width = np.where(np.isin(ops.dtype, [DTYPE_NUMBER[name] for name in NARROW]), 1.0, 2.0)
    less = (1.0 - packed) * (width * ops.batch * ops.n * ops.k)[rows]
    size, time_ns = ops.size_bytes.copy(), time_ns.copy()
    size[rows] -= less.astype(np.int64)
    ops = dataclasses.replace(ops, size_bytes=size)
    time_ns[rows] = compute_time_ns(device.busy(), ops.take(rows))
    return ops, time_ns


def work_nj(device: Device, ops: OpTable, time_ns: F64, talks: NDArray[np.bool_]) -> F64:
    """Energy of the FLOPs, bytes and messages of each node; a watt is a nanojoule per nanosecond."""
    if not device.power_w:
        return np.zeros(len(ops))
    costs = costs_of(device)
    plain = dataclasses.replace(device, energy=dataclasses.replace(costs, quantised_w=0.0))
    beyond = at_work_w(plain, ops, np.rint(time_ns).astype(np.int64)) - costs.active_w
    return np.where(talks, costs.communication_w, np.maximum(beyond, 0.0)) * time_ns


def watts_of_parts(device: Device) -> F64:
    """Watts that running kernels of each of PARTS draw, whatever they compute. Tokens are chosen by sorting the words
    of the vocabulary, which moves them as copies do; the tables have no bytes of it."""
    if not device.power_w:
        return np.zeros(len(PARTS))
    costs = costs_of(device)
    copied = device.memory_bandwidth_bytes_per_s * cost_of(device, OpClass.COPY).memory_efficiency
    more = {
        "narrow_experts": costs.quantised_w,
        "group_ns": costs.quantised_w,
        "packed_experts": costs.packed_w,
        "word_ns": costs.byte_pj * 1e-12 * copied,
    }
    return np.array([costs.active_w + more.get(name, 0.0) for name in PARTS])


def kinds_of_work(
    trace: Trace, ops: OpTable, device: Device, packed: bool, *, generated: bool = True
) -> NDArray[np.int64]:
    """Row of each node in the sums: one of PARTS, or the last for attention. Copies of `generated` passes are casts to
    narrow types."""
    product = np.isin(ops.op_class, (OpClass.GEMM, OpClass.CONVOLUTION))
    codes, words = trace.coded("name")
    attention = np.array([word == VARLEN for word in words] + [False])[codes]
    found = np.full(len(trace), PARTS.index("rest"), np.int64)
    found[product] = PARTS.index("products")
    cost = cost_of(device, OpClass.GEMM)
    compute = ops.flops * 1e9 / (peaks_of(device, OpClass.GEMM, ops) * cost.flop_efficiency)
    found[product & (compute > memory_ns(device, cost, ops.size_bytes.astype(np.float64)))] = PARTS.index("dense")
    narrow = np.isin(ops.dtype, [DTYPE_NUMBER[name] for name in NARROW])
    found[product & narrow] = PARTS.index("narrow")
    grouped = np.isin(ops.op_class, EXPERTS)
    found[grouped] = PARTS.index("experts")
    found[grouped & narrow] = PARTS.index("narrow_experts")
    found[grouped & (packed or ops.dtype == DTYPE_NUMBER["fp4"])] = PARTS.index("packed_experts")
    if generated:
        found[np.array([word == CAST for word in words] + [False])[codes]] = PARTS.index("casts")
    found[attention] = len(PARTS)
    found[trace.kind != int(Kind.COMP)] = PARTS.index("network")
    return found
