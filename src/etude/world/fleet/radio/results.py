"""Results of radio functions and AI services: the record of `etude fleet --json`, and its tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from etude.world.fleet.contract import contract
from etude.world.fleet.radio.run import RadioRun


def radio_record(ran: RadioRun) -> dict[str, Any]:
    """The record. Useful time is the fraction of the GPUs that members have; `restart` is that of members that move."""
    pool, cells = ran.pool, len(ran.pool.cells)
    part = ran.met / np.maximum(ran.asked, 1)
    rows = [
        {"name": name, "kind": "radio" if i < cells else "ai", "asked": int(ran.asked[i]), "fulfilled": float(part[i]),
         "moves": sum(member == i for _, member, _, _ in ran.moves)}
        for i, name in enumerate(pool.names)
    ]  # fmt: skip
    fullest = _fullest(ran)
    whole = pool.spec.duration_ns / 1e9
    weight = np.diff(np.append(ran.begin_s, whole)) / float(pool.members.node_gpu.sum())
    given, moving = (float((np.where(ran.paused == paused, ran.gpu, 0.0) @ weight).sum()) for paused in (False, True))
    base = contract(whole, given, rows, lost={"restart": moving}, interruptions=len(ran.moves))
    return base | {
        "policy": pool.spec.policy, "load": pool.spec.load,
        "migrate": pool.spec.migrate, "fulfilled": float(part.mean()),
        "radio_fulfilled": float(ran.met[:cells].sum() / max(ran.asked[:cells].sum(), 1)),
        "ai_fulfilled": float(ran.met[cells:].sum() / max(ran.asked[cells:].sum(), 1)),
        "moves": len(ran.moves), "slots": int(ran.asked[:cells].sum()), "requests": int(ran.asked[cells:].sum()),
        "fullest_gpu": fullest[0], "fullest_cpu": fullest[1], "members": rows,
    }  # fmt: skip


def _fullest(ran: RadioRun) -> tuple[float, float]:
    """The largest fraction of a node's GPU, and of its CPU, that was allocated at any time."""
    found = []
    for shares, sizes in ((ran.gpu, ran.pool.members.node_gpu), (ran.cpu, ran.pool.members.node_cpu)):
        given = np.stack([np.where(ran.place == n, shares, 0.0).sum(axis=0) / size for n, size in enumerate(sizes)])
        found.append(float(given.max()))
    return found[0], found[1]


def radio_tables(ran: RadioRun, record: dict[str, Any]) -> dict[str, pa.Table]:
    """Tables `members`, `moves`, and `shares` with a row for each member and stretch."""
    count, stretches = ran.place.shape
    names, nodes = np.array(ran.pool.names), np.array([node.name for node in ran.pool.nodes])
    ends = np.append(ran.begin_s[1:], ran.pool.spec.duration_ns / 1e9)
    moves = list(zip(*ran.moves, strict=True)) if ran.moves else [(), (), (), ()]
    return {
        "members": pa.Table.from_pylist(record["members"]),
        "moves": pa.table({
            "time_s": pa.array(moves[0], pa.float64()), "member": pa.array([names[i] for i in moves[1]], pa.string()),
            "from": pa.array([nodes[n] for n in moves[2]], pa.string()),
            "to": pa.array([nodes[n] for n in moves[3]], pa.string()),
        }),
        "shares": pa.table({
            "member": np.repeat(names, stretches), "start_s": np.tile(ran.begin_s, count),
            "end_s": np.tile(ends, count), "node": nodes[ran.place].ravel(), "gpu": ran.gpu.ravel(),
            "cpu": ran.cpu.ravel(), "paused": ran.paused.ravel(),
        }),
    }  # fmt: skip
