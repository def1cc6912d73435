"""Closed forms of docs/generate.md for dense decoders, written down from the whole model and not op by op.

Everything is summed over all ranks of one step.
"""

from __future__ import annotations

from collections import Counter

from etude.generate.model.shape import Model
from etude.generate.plan import Plan
from etude.generate.schedules.by_name import schedule
from etude.generate.schedules.pipeline import Action

NORM, ACTIVATION, SOFTMAX = 8, 8, 5
GRAD = {"fp32": 4, "bf16": 2, "fp16": 2}


def pairs(seq: int) -> int:
    return seq * (seq + 1) // 2


def product_flops(m: Model, plan: Plan) -> int:
    """Forward and backward products of a step: 6 for each weight of a product and token, and attention."""
    tokens = plan.batch * plan.seq
    ways = 3 if m.gated else 2
    weights = m.layers * (m.hidden * m.head * (2 * m.heads + 2 * m.kv) + ways * m.hidden * m.ffn)
    return 6 * tokens * (weights + m.hidden * m.vocab) + 14 * plan.batch * m.layers * m.heads * m.head * pairs(plan.seq)


def model_flops(m: Model, plan: Plan) -> int:
    """The same without the scores that fused attention makes again on its way back."""
    return product_flops(m, plan) - 2 * plan.batch * m.layers * m.heads * m.head * pairs(plan.seq)


def recomputed_flops(m: Model, plan: Plan) -> int:
    """Products that are done a second time."""
    if plan.recompute == "selective:norm,activation":
        return 0
    attention = 4 * plan.batch * m.layers * m.heads * m.head * pairs(plan.seq)
    if plan.recompute == "selective":
        return attention
    if plan.recompute == "none":
        return 0
    ways = 3 if m.gated else 2
    weights = m.layers * (m.hidden * m.head * (2 * m.heads + 2 * m.kv) + ways * m.hidden * m.ffn)
    return 2 * plan.batch * plan.seq * weights + attention


def params(m: Model) -> int:
    ways = 3 if m.gated else 2
    norm = m.hidden * (2 if m.norm == "layer" else 1)
    layer = m.hidden * m.head * (2 * m.heads + 2 * m.kv) + ways * m.hidden * m.ffn + 2 * norm
    return m.layers * layer + norm + m.vocab * m.hidden * (1 if m.tied else 2)


def stage_params(m: Model, plan: Plan, layers: int, *, first: bool, last: bool) -> int:
    """Of one rank: split over tensor-parallel ranks but for norms."""
    ways = 3 if m.gated else 2
    norm = m.hidden * (2 if m.norm == "layer" else 1)
    split = m.hidden * m.head * (2 * m.heads + 2 * m.kv) + ways * m.hidden * m.ffn
    table = -(-m.vocab // plan.tp) * m.hidden
    count = layers * (split // plan.tp + 2 * norm)
    shared = m.tied and (plan.pp == 1 or plan.schedule in V_SHAPED)  # one table for both ends
    return count + (table if first else 0) + ((norm + (0 if shared else table)) if last else 0)


V_SHAPED = ("zbv", "vhalf", "vmin")
"""The first rank holds the last stage too."""


def norm_bytes(m: Model, plan: Plan) -> int:
    """Gradients of norms, which all tensor-parallel ranks have, each of its own tokens; once a step."""
    if plan.tp == 1 or not plan.sequence_parallel:
        return 0
    params = (2 * m.layers + 1) * m.hidden * (2 if m.norm == "layer" else 1)
    if plan.zero < 2:
        return GRAD[plan.grad_dtype] * params * plan.stage_ranks
    made = schedule(plan.schedule, ranks=plan.pp, micro_batches=plan.micro_batches)
    from etude.generate.train.job import split

    sizes, one = split(m.layers, made.stages), m.hidden * (2 if m.norm == "layer" else 1)
    held = [sum(2 * sizes[s] + (s == made.stages - 1) for s in mine) * one for mine in made.held]
    return GRAD[plan.grad_dtype] * sum(-(-n // plan.replicas) for n in held) * plan.stage_ranks


def tensor_bytes(m: Model, plan: Plan) -> Counter[str]:
    """Input bytes of tensor-parallel collectives, one rank of each stage summed over stages, one micro-batch."""
    found: Counter[str] = Counter()
    t = plan.tp
    if t == 1:
        return found
    full = plan.micro_batch * plan.seq // plan.cp * m.hidden * 2
    again = plan.recompute == "full"
    if plan.sequence_parallel:
        # Layers gather twice and scatter twice forward; backward they gather gradients and inputs, and scatter.
        found["all_gather"] = (m.layers * (6 + 2 * again) + 1 + 2) * (full // t)  # the embedding's, the head's
        found["reduce_scatter"] = (m.layers * (4 + 2 * again) + 1 + 1) * full
    else:
        found["all_reduce"] = (m.layers * (4 + 2 * again) + 1 + 1) * full
    found["all_reduce"] += 2 * 4 * (plan.micro_batch * plan.seq // plan.cp)
    return found


def context_bytes(m: Model, plan: Plan) -> Counter[str]:
    found: Counter[str] = Counter()
    c = plan.cp
    if c == 1:
        return found
    times = 2 if plan.recompute in ("selective", "full") else 1
    kv = max(m.kv // plan.tp, 1)
    mine = plan.micro_batch * plan.seq // c * kv * 2 * m.head * 2
    if plan.cp_kind == "ring":
        found["send"] = m.layers * (c - 1) * (times * mine + 2 * mine)
    elif plan.cp_kind == "all_gather":
        found["all_gather"] = m.layers * (times + 1) * mine
        found["reduce_scatter"] = m.layers * mine * c
    else:
        heads = m.heads // plan.tp
        queries = plan.micro_batch * plan.seq // c * heads * m.head * 2
        found["all_to_all"] = m.layers * (times + 1) * (queries + mine + queries)
    return found


def pipeline_bytes(m: Model, plan: Plan) -> int:
    """Activations forward and gradients back over every border between ranks."""
    made = schedule(plan.schedule, ranks=plan.pp, micro_batches=plan.micro_batches)
    cut = plan.tp if plan.sequence_parallel else 1
    size = plan.micro_batch * plan.seq // plan.cp // cut * m.hidden * 2
    home = {}
    for rank in range(plan.pp):
        rows = made.rows(rank)
        home |= dict.fromkeys(zip(made.stage[rows].tolist(), made.micro_batch[rows].tolist(), strict=True), rank)
    borders = sum(home[s, b] != home[s + 1, b] for b in range(plan.micro_batches) for s in range(made.stages - 1))
    return 2 * borders * size


def comm_bytes(m: Model, plan: Plan) -> dict[str, dict[str, int]]:
    """Input bytes over all ranks, by group and type. Dense weights, one group of copies, buckets of whole stages."""
    each = plan.stage_ranks * plan.micro_batches
    found = {
        "tp": Counter({kind: size * each for kind, size in tensor_bytes(m, plan).items()})
        + Counter(all_reduce=norm_bytes(m, plan)),
        "cp": {kind: size * each for kind, size in context_bytes(m, plan).items()},
        "pp": {"send": pipeline_bytes(m, plan) * plan.stage_ranks if plan.pp > 1 else 0},
        "dp": dict(data_bytes(m, plan)),
        "ends": {"all_reduce": tied_bytes(m, plan)},
        "world": {"all_reduce": 4 * plan.gpus if plan.clip and plan.gpus > 1 else 0},
    }
    known = {label: {kind: size for kind, size in kinds.items() if size} for label, kinds in found.items()}
    return {label: kinds for label, kinds in known.items() if kinds}


def tied_bytes(m: Model, plan: Plan) -> int:
    apart = m.tied and plan.pp > 1 and plan.schedule not in V_SHAPED
    table = -(-m.vocab // plan.tp) * m.hidden
    each = -(-table // plan.replicas) if plan.zero == 2 else table
    return 2 * each * GRAD[plan.grad_dtype] * plan.stage_ranks * apart


def data_bytes(m: Model, plan: Plan) -> Counter[str]:
    from etude.generate.train.job import split

    found: Counter[str] = Counter()
    made = schedule(plan.schedule, ranks=plan.pp, micro_batches=plan.micro_batches)
    sizes, n = split(m.layers, made.stages), plan.replicas
    grad = GRAD[plan.grad_dtype]
    for stage, layers in enumerate(sizes):
        size = stage_params(m, plan, layers, first=stage == 0, last=stage == made.stages - 1)
        if n > 1 and plan.zero == 0:
            found["all_reduce"] += size * grad * plan.stage_ranks
        if n > 1 and plan.zero in (1, 2):
            padded = -(-size // n) * n
            times = plan.micro_batches if plan.zero == 2 else 1
            found["reduce_scatter"] += padded * grad * plan.stage_ranks * times
            found["all_gather"] += padded * 2 // n * plan.stage_ranks
    return found


# -- memory ------------------------------------------------------------------------------------------------------------


def layer_bytes(m: Model, plan: Plan) -> tuple[int, int]:
    """(what a layer keeps of a micro-batch without recomputation, what of it need not be kept with the plan's)."""
    tokens = plan.micro_batch * plan.seq // plan.cp
    rows = tokens // plan.tp if plan.sequence_parallel else tokens
    heads, kv, ffn = m.heads // plan.tp, max(m.kv // plan.tp, 1), m.ffn // plan.tp
    core = 2 * tokens * m.head * (heads + 2 * kv) + 4 * tokens * heads
    around = 4 * 2 * rows * m.hidden  # two norms, and into the first product of each half
    whole = core + around + 2 * tokens * (heads * m.head + (3 if m.gated else 2) * ffn)
    less = {
        "none": 0,
        "selective": 4 * tokens * heads,
        "selective:norm,activation": 2 * 2 * rows * m.hidden + 2 * tokens * ffn,
        "full": whole - 2 * rows * m.hidden,
    }
    return whole, less[plan.recompute]


def kept_bytes(m: Model, plan: Plan, layers: int, *, first: bool, last: bool) -> int:
    """What a stage keeps of a micro-batch until its backward pass."""
    tokens = plan.micro_batch * plan.seq // plan.cp
    rows = tokens // plan.tp if plan.sequence_parallel else tokens
    whole, less = layer_bytes(m, plan)
    head = 2 * 2 * rows * m.hidden + 4 * tokens * -(-m.vocab // plan.tp)
    return layers * (whole - less) + (8 * tokens if first else 0) + (head if last else 0)


def memory_peaks(m: Model, plan: Plan) -> list[int]:
    """Of each pipeline rank of ZeRO 0 to 2: weights, gradients, optimizer, and the fullest moment of its schedule."""
    from etude.generate.train.job import split

    made = schedule(plan.schedule, ranks=plan.pp, micro_batches=plan.micro_batches)
    sizes, n = split(m.layers, made.stages), plan.replicas
    tokens = plan.micro_batch * plan.seq // plan.cp
    again = layer_bytes(m, plan)[1]
    gathered = plan.seq * plan.micro_batch * max(m.kv // plan.tp, 1) * 2 * m.head * 2
    found = []
    for rank in range(plan.pp):
        mine = [(s, sizes[s], s == 0, s == made.stages - 1) for s in made.held[rank]]
        params = [stage_params(m, plan, count, first=first, last=last) for _, count, first, last in mine]
        kept = {s: kept_bytes(m, plan, count, first=first, last=last) for s, count, first, last in mine}
        logits = {s: 4 * tokens * -(-m.vocab // plan.tp) * last for s, _, _, last in mine}
        keys = gathered if plan.cp > 1 and plan.cp_kind == "all_gather" else 0
        held = peak = 0
        rows = made.rows(rank)
        for action, s in zip(made.action[rows].tolist(), made.stage[rows].tolist(), strict=True):
            held += kept[s] if action == Action.FORWARD else 0
            beside = 0 if action == Action.WEIGHT else max(logits[s], keys)
            if action in (Action.BACKWARD, Action.INPUT):
                beside = max(beside, again)
            peak = max(peak, held + beside)
            held -= kept[s] if action in (Action.BACKWARD, Action.WEIGHT) else 0
        found.append(_state_bytes(m, plan, params, mine, n) + peak)
    return found


def _state_bytes(m: Model, plan: Plan, params: list[int], mine: list[tuple[int, int, bool, bool]], n: int) -> int:
    """2 bytes a weight, a gradient, 12 for the optimizer. ZeRO 2 has a block's gradients whole beside its share."""
    total, grad = sum(params), GRAD[plan.grad_dtype]
    state = 12 * sum(-(-p // n) if plan.zero else p for p in params)
    if plan.zero < 2 or n == 1:
        return 2 * total + grad * total + state
    layer = stage_params(m, plan, 1, first=False, last=False)
    ends = [stage_params(m, plan, 0, first=first, last=False) for _, _, first, _ in mine if first]
    ends += [stage_params(m, plan, 0, first=False, last=last) for *_, last in mine if last]
    return 2 * total + grad * (-(-total // n) + max(layer, *ends, 0)) + state
