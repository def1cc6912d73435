"""The coordinates of each rank on the plan's axes, the groups, and the bindings of its program's slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.kernels.arrays import I32, I64
from etude.make.generate.plan import Plan
from etude.model.job import DEFAULT_METADATA, Groups, Job
from etude.model.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class RankGrid:
    """Coordinates of every rank, and the inverse."""

    plan: Plan
    at: dict[str, I32]
    """Axis -> coordinate of each rank; `ep`, `etp` and `edp` are those of the experts in its stage."""

    @classmethod
    def of(cls, plan: Plan) -> RankGrid:
        sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
        rest = np.arange(plan.gpus, dtype=np.int32)
        at: dict[str, I32] = {}
        for axis in plan.order.split("-"):
            at[axis], rest = rest % sizes[axis], rest // sizes[axis]
        # Ranks of a stage, numbered in rank order, carry the experts: etp fastest, then ep, then copies.
        order = np.argsort(at["pp"], kind="stable")
        within = np.empty(plan.gpus, np.int32)
        within[order] = np.arange(plan.gpus, dtype=np.int32) % plan.stage_ranks
        at["etp"], rest = within % plan.etp, within // plan.etp
        at["ep"], at["edp"] = rest % plan.ep, rest // plan.ep
        at["copy"] = at["dp"] * plan.cp + at["cp"]
        shard = plan.dp_shard or plan.replicas
        at["shard"], at["replica"] = at["copy"] % shard, at["copy"] // shard
        at["eshard"], at["ereplica"] = at["edp"] % plan.expert_shards, at["edp"] // plan.expert_shards
        return cls(plan, at)

    def along(self, label: str) -> tuple[I32, I32]:
        """(number of its group, position in it) of each rank for a group slot."""
        p, at = self.plan, self.at
        if label.startswith("kv"):  # neighbouring tensor-parallel ranks that share keys and values
            count = int(label.removeprefix("kv"))
            return self._key("cp", "dp", "pp") * (p.tp // count) + at["tp"] // count, at["tp"] % count
        shard = p.dp_shard or p.replicas
        if label.startswith("holders"):  # a stage on several pipeline ranks
            label = "ends"
        node = p.ep_node or p.ep

        def expert() -> I32:
            return (at["pp"] * p.etp + at["etp"]) * p.ep + at["ep"]

        def experts() -> I32:
            return (at["pp"] * p.etp + at["etp"]) * p.expert_replicas + at["edp"]

        along: dict[str, Callable[[], tuple[I32, I32]]] = {
            "tp": lambda: (self._key("cp", "dp", "pp"), at["tp"]),
            "cp": lambda: (self._key("tp", "dp", "pp"), at["cp"]),
            "dp": lambda: (self._key("tp", "pp"), at["copy"]),
            "shard": lambda: (self._key("tp", "pp") * (p.replicas // shard) + at["replica"], at["shard"]),
            "replica": lambda: (self._key("tp", "pp") * shard + at["shard"], at["replica"]),
            "etp": lambda: ((at["pp"] * p.ep + at["ep"]) * p.expert_replicas + at["edp"], at["etp"]),
            "ep": lambda: (experts(), at["ep"]),
            "ep_in": lambda: (experts() * (p.ep // node) + at["ep"] // node, at["ep"] % node),
            "ep_out": lambda: (experts() * node + at["ep"] % node, at["ep"] // node),
            "edp": lambda: (expert(), at["edp"]),
            "eshard": lambda: (expert() * (p.expert_replicas // p.expert_shards) + at["ereplica"], at["eshard"]),
            "ereplica": lambda: (expert() * p.expert_shards + at["eshard"], at["ereplica"]),
            "ends": lambda: (self._key("tp", "cp", "dp"), at["pp"]),
            "twins": lambda: (self._key("tp", "cp", "dp") * p.pp + np.minimum(at["pp"], p.pp - 1 - at["pp"]), at["pp"]),
            "world": lambda: (np.zeros(p.gpus, np.int32), np.arange(p.gpus, dtype=np.int32)),
        }
        return along[label]()

    def _key(self, *axes: str) -> I32:
        sizes = {"tp": self.plan.tp, "cp": self.plan.cp, "dp": self.plan.dp, "pp": self.plan.pp}
        key = np.zeros(self.plan.gpus, np.int32)
        for axis in axes:
            key *= sizes[axis]
            key += self.at[axis]
        return key

    def peer(self, label: str) -> I32:
        """Rank behind a peer slot: `cp_next`, `cp_prev`, `cp+3` along the context-parallel ranks, `tile-1+0` on the
        grid of a domain, or the one with the same coordinates in another stage (`stage3`) or another data-parallel copy
        (`copy3`)."""
        p, at = self.plan, self.at
        moved = dict(at)
        if label.startswith("stage"):
            moved["pp"] = np.full(p.gpus, int(label.removeprefix("stage")), np.int32)
        elif label.startswith("copy"):
            moved["dp"] = np.full(p.gpus, int(label.removeprefix("copy")), np.int32)
        elif label.startswith("tile"):
            rows, columns = p.domain_of
            offset = label.removeprefix("tile")
            y, x = (at["cp"] // columns + int(offset[:2])) % rows, (at["cp"] % columns + int(offset[2:])) % columns
            moved["cp"] = y * columns + x
        else:
            step = {"cp_next": 1, "cp_prev": -1}[label] if label.startswith("cp_") else int(label.removeprefix("cp"))
            moved["cp"] = (at["cp"] + step) % p.cp
        sizes = {"tp": p.tp, "cp": p.cp, "dp": p.dp, "pp": p.pp}
        rank, stride = np.zeros(p.gpus, np.int32), 1
        for axis in p.order.split("-"):
            rank += moved[axis] * stride
            stride *= sizes[axis]
        return rank


@dataclass(frozen=True, slots=True, eq=False)
class Bindings:
    groups: Groups
    group_start: I64
    group_of: I32
    peer_start: I64
    peer_of: I64


def bind(
    grid: RankGrid, stages: Sequence[tuple[Sequence[str], Sequence[str]]], program_of: I32 | I64 | None = None
) -> Bindings:
    """Groups and peers of every rank. `stages`: the labels of the group and peer slots of each stage's program.
    `program_of`: the program of a rank if it is not that of its stage."""
    pp = grid.at["pp"] if program_of is None else program_of
    n = len(pp)
    labels = list(dict.fromkeys(label for groups, _ in stages for label in groups))
    number: dict[str, I32] = {}
    names: list[str] = []
    members: list[I32] = []
    sizes: list[I64] = []
    for label in labels:
        users = np.array([label in groups for groups, _ in stages])[pp]
        key, place = grid.along(label)
        ranks = np.flatnonzero(users).astype(np.int32)
        ranks = ranks[np.lexsort((place[ranks], key[ranks]))]
        distinct, count = np.unique(key[ranks], return_counts=True)
        number[label] = np.full(n, -1, np.int32)
        number[label][ranks] = np.repeat(np.arange(len(distinct), dtype=np.int32) + len(names), count)
        names += [f"{label}.{i}" for i in range(len(distinct))]
        members.append(ranks)
        sizes.append(count)
    flat = np.concatenate(members) if members else np.zeros(0, np.int32)
    start = np.concatenate([[0], np.cumsum(np.concatenate(sizes))]) if sizes else np.zeros(1, np.int64)
    groups = Groups(tuple(names), start.astype(np.int64), flat, np.ones(len(names), bool))
    group_start, group_of = _table(pp, [g for g, _ in stages], lambda label: number[label])
    peer_start, peer_of = _table(pp, [p for _, p in stages], grid.peer)
    return Bindings(groups, group_start, group_of, peer_start, peer_of.astype(np.int64))


def _table(pp: I32 | I64, labels: Sequence[Sequence[str]], value: Callable[[str], I32]) -> tuple[I64, I32]:
    """Values of each rank's slots, rank by rank."""
    counts = np.array([len(found) for found in labels], np.int64)[pp]
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    flat = np.zeros(int(start[-1]), np.int32)
    known: dict[str, I32] = {}
    for stage, found in enumerate(labels):
        ranks = np.flatnonzero(pp == stage)
        for slot, label in enumerate(found):
            if label not in known:
                known[label] = value(label)
            flat[start[ranks] + slot] = known[label][ranks]
    return start, flat


def job_of(
    name: str, traces: Sequence[Trace], program_of: I32 | I64, bound: Bindings, provenance: Mapping[str, str],
    values: Mapping[int, Mapping[str, NDArray[Any]]] | None = None,
) -> Job:  # fmt: skip
    """The folded job: rank i runs traces[program_of[i]] with its slots bound."""
    n = len(program_of)
    return Job(
        name=name,
        traces=tuple(traces),
        ranks=np.arange(n, dtype=np.int32),
        trace_of=program_of.astype(np.int32),
        groups=bound.groups,
        group_start=bound.group_start,
        group_of=bound.group_of,
        peer_start=bound.peer_start,
        peer_of=bound.peer_of,
        id_base=np.zeros(n, np.uint64),
        tag_base=np.zeros(n, np.int64),
        world_size=n,
        metadata=(DEFAULT_METADATA,),
        metadata_of=np.zeros(n, np.int32),
        values=values or {},
        provenance={"tool": "etude generate", **provenance},
    )
