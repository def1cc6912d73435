"""Random decoders and plans, and whether what is generated for them equals what `hand_arithmetic` works out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np

from etude.base.errors import UsageError
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.schedules.by_name import schedule
from etude.make.generate.train.job import Generated, generate
from etude.model.schema import Collective, Kind
from hand_arithmetic import INPUT, Hand
from random_jobs import SCHEDULES

PRODUCTS = ("aten::mm", "aten::_grouped_mm", "aten::bmm", "aten::_scaled_dot_product_flash_attention",
            "aten::_scaled_dot_product_flash_attention_backward")  # fmt: skip


def random_decoder(random: Random) -> Model:
    kind = random.choice(["dense", "moe", "latent", "latent moe"])
    shape: dict[str, Any] = {
        "name": kind, "layers": random.choice([4, 5, 8]), "hidden": 64, "heads": 8, "ffn": random.choice([128, 192]),
        "vocab": random.choice([256, 250]), "seq": 64, "gated": random.random() < 0.6, "tied": random.random() < 0.5,
        "norm": random.choice(["rms", "layer"]), "window": random.choice([0, 0, 16]),
        "predict_layers": random.choice([0, 0, 0, 1, 2]),
        "positions": random.choice(["rotary", "none", "learned"]),
    }  # fmt: skip
    if shape["window"]:
        shape |= random.choice([{}, {"window_every": 2}])
    if "moe" in kind:
        shape |= {"experts": 8, "top_k": random.choice([2, 4]), "expert_ffn": 32, "dense_layers": random.choice([0, 1]),
                  "moe_every": random.choice([1, 2]), "shared_ffn": random.choice([0, 64])}  # fmt: skip
    if "latent" in kind:
        shape |= {"q_rank": random.choice([0, 32]), "kv_rank": 16, "rope_size": 4, "nope_size": 8, "value_size": 8}
    else:
        shape |= {"kv_heads": random.choice([2, 4, 8]), "bias": random.random() < 0.3, "qk_norm": random.random() < 0.3}
    return Model.from_dict(shape)


def random_layout(random: Random, m: Model) -> dict[str, Any]:
    tp, cp, pp = random.choice([1, 2, 4]), random.choice([1, 1, 2]), random.choice([1, 2, 4])
    dp, micro, zero = random.choice([1, 2, 3, 4]), random.choice([1, 2, 4]), random.randrange(4)
    stage = tp * cp * dp
    ways = [(e, t) for e in (1, 2, 4, 8) for t in (1, 2) if stage % (e * t) == 0] if m.experts else [(1, 1)]
    ep, etp = random.choice(ways)
    plan: dict[str, Any] = {
        "gpus": stage * pp, "tp": tp, "cp": cp, "pp": pp, "ep": ep, "etp": etp, "micro_batch": micro,
        "global_batch": dp * micro * random.choice([1, 4, 8]), "schedule": random.choice(SCHEDULES), "zero": zero,
        "reshard": random.random() < 0.7, "prefetch": random.choice([0, 1, 2]),
        "cp_kind": random.choice(["ring", "all_gather", "ulysses"]),
        "recompute": random.choice(["none", "selective", "selective:norm,activation", "full"]),
        "tp_chunks": random.choice([1, 1, 2]), "precision": random.choice(["bf16", "fp16", "fp8", "fp32"]),
        "dispatch": random.choice(["products", "activations"]), "grad_dtype": random.choice(["fp32", "bf16"]),
        "state_dtype": random.choice(["fp32", "bf16"]), "master": random.random() < 0.7,
        "loss_dtype": random.choice(["fp32", "bf16"]), "keep_grads": random.random() < 0.3,
        "attention": random.choice(["flash", "flash", "unfused"]), "clip": random.random() < 0.7,
        "overlap_params": random.random() < 0.7, "bucket": random.choice([1, 10**12]),
        "order": random.choice(["tp-cp-dp-pp", "tp-pp-cp-dp", "cp-tp-pp-dp", "pp-dp-cp-tp"]), "seq": m.seq,
    }  # fmt: skip
    if tp > 1 and random.random() < 0.3:
        plan["sp"] = False
    if zero and random.random() < 0.4:
        plan["dp_shard"] = random.choice([n for n in (1, 2, 3, 4) if dp * cp % n == 0])
    return plan


def cases(seed: int) -> Iterator[tuple[int, Generated, Hand]]:
    """(seed, what is generated, what comes out by hand), without end; plans that cannot be are passed over."""
    while True:
        random = Random(seed)
        seed += 1
        m = random_decoder(random)
        given = random_layout(random, m)
        rows = given["micro_batch"] * m.seq // given["cp"] // given["tp"]
        if m.experts and rows * m.top_k * given["etp"] % (m.experts // given["ep"]):
            continue  # experts with a part of a token
        try:
            found = generate(m, Plan.from_dict(given))
        except UsageError:
            continue
        yield seed - 1, found, by_hand(m, found.plan)


def by_hand(m: Model, plan: Plan) -> Hand:
    plan = plan.replace(global_batch=plan.batch)
    dp = plan.gpus // (plan.tp * plan.cp * plan.pp)
    made = schedule(plan.schedule, ranks=plan.pp, micro_batches=plan.global_batch // (dp * plan.micro_batch))
    actions = [
        list(zip(made.action[r].tolist(), made.stage[r].tolist(), made.micro_batch[r].tolist(), strict=True))
        for r in map(made.rows, range(plan.pp))
    ]
    return Hand(m, plan, actions, [list(held) for held in made.held])


# -- the two beside one another ----------------------------------------------------------------------------------------


def differences(found: Generated, hand: Hand) -> list[str]:
    """What does not agree, quantity by quantity."""
    wrong = _compare("parameters", found.params, hand.params())
    wrong += _compare("model operations", found.model_flops, model_flops(found.model, found.plan))
    for rank in range(found.plan.pp):
        memory, where = found.memory[rank], f"pipeline rank {rank}"
        wrong += _compare(f"{where}: weights", memory.weights, hand.weight_bytes(rank))
        wrong += _compare(f"{where}: gradients", memory.gradients, hand.gradient_bytes(rank))
        wrong += _compare(f"{where}: optimizer", memory.optimizer, hand.optimizer_bytes(rank))
        if all(action != INPUT for action, _, _ in hand.actions[rank]):
            wrong += _compare(f"{where}: peak", memory.peak_bytes, hand.peak_bytes(rank))
        wrong += _compare(f"{where}: operations", flops(found, rank), hand.product_flops(rank))
        done = hand.calls(rank)
        wrong += _compare(
            f"{where}: collectives", calls(found, rank), {k: n for k, n in done.items() if k[1] != "send"}
        )
    at = coordinates(found.plan)
    labels = [{group for group, kind, _ in hand.calls(stage) if kind != "send"} for stage in range(found.plan.pp)]
    rings = [{size: n for (_, kind, size), n in hand.calls(s).items() if kind == "send"} for s in range(found.plan.pp)]
    messages = [hand.messages(stage) for stage in range(found.plan.pp)]
    for rank, mine in enumerate(at):
        stage = mine["pp"]
        assert int(found.job.trace_of[rank]) == stage
        expected = {(_at(at, mine | {"pp": to}), size): n for (to, size), n in messages[stage].items()}
        following = _at(at, mine | {"cp": (mine["cp"] + 1) % hand.p.cp})
        expected |= {(following, size): n for size, n in rings[stage].items()}
        wrong += _compare(f"rank {rank}: messages", sends(found, rank), expected)
        wrong += _compare(f"rank {rank}: groups", groups(found, rank), hand_groups(hand, at, rank, labels[stage]))
    return wrong


def _compare(what: str, one: Any, other: Any) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict) and one != other:
        keys = sorted({k for k in {**one, **other} if one.get(k) != other.get(k)}, key=str)[:6]
        return [f"{what}: " + "; ".join(f"{k}: {one.get(k)}, by hand {other.get(k)}" for k in keys)]
    return [] if one == other else [f"{what}: {one}, by hand {other}"]


def model_flops(m: Model, plan: Plan) -> int:
    """What the model needs, on one rank alone: products three times, and of attention no scores a second time."""
    alone = plan.replace(gpus=1, tp=1, cp=1, pp=1, ep=1, etp=1, sp=None, zero=0, dp_shard=0, schedule="1f1b", stages=(),
                         precision="bf16", recompute="none", global_batch=plan.micro_batch)  # fmt: skip
    pieces = by_hand(m, alone).stages[0]
    return 3 * sum(piece.products + piece.attention for piece in pieces) * plan.batch // plan.micro_batch


def flops(found: Generated, stage: int) -> tuple[int, int]:
    trace = found.job.traces[stage]
    names, words = trace.coded("name")
    phase, phases = trace.coded("phase")
    product = np.array([w in PRODUCTS for w in words])[names] & (trace.kind == int(Kind.COMP))
    second = np.array([w == "recompute" for w in phases])[phase]
    return int(trace.flops[product & ~second].sum()), int(trace.flops[product & second].sum())


def calls(found: Generated, stage: int) -> dict[tuple[str, str, int], int]:
    trace = found.job.traces[stage]
    slots = [*trace.group_slots, ""]
    rows = np.flatnonzero(trace.kind == int(Kind.COLL)).tolist()
    return Counter((slots[trace.group[r]], Collective(trace.collective[r]).name.lower(), int(trace.in_bytes[r]))
                   for r in rows)  # fmt: skip


def sends(found: Generated, rank: int) -> dict[tuple[int, int], int]:
    job, trace = found.job, found.job.trace(rank)
    rows = np.flatnonzero(trace.kind == int(Kind.SEND)).tolist()
    peers = job.peer_of[job.peer_start[rank] : job.peer_start[rank + 1]].tolist()
    return Counter((peers[trace.dst[r]], int(trace.in_bytes[r])) for r in rows)


AXES = ("tp", "cp", "dp", "pp")


def _at(at: list[dict[str, int]], place: dict[str, int]) -> int:
    return next(r for r, one in enumerate(at) if all(one[a] == place[a] for a in AXES))


def coordinates(plan: Plan) -> list[dict[str, int]]:
    """Where each rank is on the axes: the first of the order changes fastest. The ranks of a stage in their order carry
    the experts: etp fastest, then ep, then copies."""
    sizes = {"tp": plan.tp, "cp": plan.cp, "pp": plan.pp, "dp": plan.gpus // (plan.tp * plan.cp * plan.pp)}
    found: list[dict[str, int]] = []
    seen: Counter[int] = Counter()
    for rank in range(plan.gpus):
        one, rest = {}, rank
        for axis in plan.order.split("-"):
            one[axis], rest = rest % sizes[axis], rest // sizes[axis]
        place = seen[one["pp"]]
        seen[one["pp"]] += 1
        one |= {"etp": place % plan.etp, "ep": place // plan.etp % plan.ep, "edp": place // plan.etp // plan.ep}
        found.append(one)
    return found


def groups(found: Generated, rank: int) -> dict[str, list[int]]:
    """Members of each group that the rank has collectives on."""
    job, trace = found.job, found.job.trace(rank)
    bound = job.group_of[job.group_start[rank] : job.group_start[rank + 1]].tolist()
    members = {label: job.groups.ranks(g) for label, g in zip(trace.group_slots, bound, strict=True)}
    return {label: sorted(m.tolist()) for label, m in members.items() if m is not None}


def hand_groups(hand: Hand, at: list[dict[str, int]], rank: int, labels: set[str]) -> dict[str, list[int]]:
    """The ranks that differ from this one on the axes that a group runs along, and on no other."""
    p, mine = hand.p, at[rank]
    copy = [one["dp"] * p.cp + one["cp"] for one in at]
    shard = p.dp_shard or hand.dp * p.cp
    inside = hand.shards(True)[0]
    same: dict[str, Any] = {
        "tp": lambda r: _same(at[r], mine, "cp", "dp", "pp"),
        "cp": lambda r: _same(at[r], mine, "tp", "dp", "pp"),
        "dp": lambda r: _same(at[r], mine, "tp", "pp"),
        "shard": lambda r: _same(at[r], mine, "tp", "pp") and copy[r] // shard == copy[rank] // shard,
        "replica": lambda r: _same(at[r], mine, "tp", "pp") and copy[r] % shard == copy[rank] % shard,
        "ep": lambda r: _same(at[r], mine, "pp", "etp", "edp"),
        "etp": lambda r: _same(at[r], mine, "pp", "ep", "edp"),
        "edp": lambda r: _same(at[r], mine, "pp", "ep", "etp"),
        "eshard": lambda r: _same(at[r], mine, "pp", "ep", "etp") and at[r]["edp"] // inside == mine["edp"] // inside,
        "ereplica": lambda r: _same(at[r], mine, "pp", "ep", "etp") and at[r]["edp"] % inside == mine["edp"] % inside,
        "ends": lambda r: _same(at[r], mine, "tp", "cp", "dp") and at[r]["pp"] in hand.table_ranks,
        "twins": lambda r: (
            _same(at[r], mine, "tp", "cp", "dp") and set(hand.held[at[r]["pp"]]) == set(hand.held[mine["pp"]])
        ),
        "world": lambda r: True,
    }
    found = {}
    for label in labels:
        if label.startswith("kv"):
            n, around = int(label[2:]), [r for r in range(p.gpus) if same["tp"](r)]
            found[label] = [r for r in around if at[r]["tp"] // n == mine["tp"] // n]
        else:
            found[label] = [r for r in range(p.gpus) if same[label](r)]
    return found


def _same(one: dict[str, int], other: dict[str, int], *axes: str) -> bool:
    return all(one[a] == other[a] for a in axes)
