"""Rollouts on devices of a stream of requests: which replica lends how much, and when it is taken back.

    borrow: {from: chat, how: guarded, share: 0.5, every: 250ms, calm: 2s, margin: 0.9}

Both loops advance together, tick by tick. A replica that serves and lends a part of itself takes longer for its passes;
an idle one lends all of itself. `guarded` lends while no request waits there and while a pass with its current requests
would still keep the limit per token (with a margin), and takes back at the next tick otherwise; turns in progress are
then lost and repeated elsewhere. `fixed` always lends its share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
import pyarrow as pa

from etude.base.errors import UsageError
from etude.base.figures import figure, read, usage_errors
from etude.world.clock import NEVER
from etude.world.fleet.rl.loop import RlLoop
from etude.world.fleet.rl.run import PoolRollouts, loop_of, run_rl
from etude.world.fleet.rl.spec import BORROWED, RlSpec
from etude.world.fleet.sharing.cluster import Cluster
from etude.world.fleet.sharing.streams import PoolStream, PreparedStream, placed, serve_streams


class LendMethod(Enum):
    NONE = "none"
    FIXED = "fixed"
    GUARDED = "guarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Borrow:
    stream: str = figure("text", "stream whose devices are borrowed", "stream")
    how: LendMethod = figure("choice", "none, fixed or guarded", LendMethod.GUARDED)
    share: float = figure("fraction", "part of a serving device", 0.5)
    every_ns: int = figure("time", "time between two checks", 250_000_000)
    calm_ns: int = figure("time", "time without a violation before devices are lent", 2_000_000_000, zero=True)
    margin: float = figure("fraction", "part of the limit for each token", 0.9)


def read_borrow(given: dict[str, Any] | None, streams: list[PoolStream], where: str) -> Borrow:
    with usage_errors():
        found = read(Borrow, given or {"how": "none"}, f"{where}: borrow")
    names = [stream.name for stream in streams]
    if found.how is not LendMethod.NONE and found.stream not in names:
        known = ", ".join(names) or "none"
        raise UsageError(f"borrow: there is no stream `{found.stream}`", where=where, hint=f"known: {known}")
    if found.share >= 1:
        raise UsageError("borrow: share: a serving device must keep a share of itself", where=where, hint="share: 0.5")
    return found


class Lender:
    """Decides at each tick what is lent, and advances the loop of rollouts."""

    def __init__(self, loop: RlLoop, borrow: Borrow, stream: PoolStream, most: int) -> None:
        self.loop, self.borrow, self.stream, self.most = loop, borrow, stream, most
        mine = loop.replicas_on(BORROWED)
        self.mine = [mine[k :: stream.replicas] for k in range(stream.replicas)]
        """Rollout replicas on each serving replica."""
        self.calm_since = [-borrow.calm_ns] * stream.replicas
        self.rows: list[tuple[int, float, int]] = []
        self.taken = 0

    def decide(self, seen: list[Any], now: int) -> list[bool]:
        loop = self.loop
        loop.advance(now - 1)  # what ends at the tick itself ends after it
        speeds = [self._speed(k, one, now) for k, one in enumerate(seen)]
        if loop.done or not loop.wants:
            speeds = [0.0] * len(seen)
        self._set(speeds, now)
        devices = sum(speeds) * self.stream.tp
        self.rows.append((now, devices, sum(one.running + one.waiting for one in seen)))
        return [speed > 0 for speed in speeds]

    def _speed(self, k: int, one: Any, now: int) -> float:
        if self.borrow.how is LendMethod.FIXED:
            return self.borrow.share
        if one.waiting or one.running > self.most:
            self.calm_since[k] = now
            return 0.0
        if now - self.calm_since[k] < self.borrow.calm_ns:
            return 0.0
        return self.borrow.share if one.running else 1.0

    def _set(self, speeds: list[float], now: int) -> None:
        if self.loop.done:
            return
        for k, speed in enumerate(speeds):
            for number in self.mine[k]:
                before = self.loop.replicas[number].speed
                if before != speed:
                    self.taken += before > 0 and speed == 0
                    self.loop.set_speed(number, speed, now)

    def after(self, now: int) -> None:
        """After the last request: lends everything, or the fixed share."""
        all_of = self.borrow.share if self.borrow.how is LendMethod.FIXED else 1.0
        self.loop.advance(now - 1)
        self._set([all_of] * self.stream.replicas, now)
        self.rows.append((now, all_of * self.stream.replicas * self.stream.tp, 0))
        self.loop.advance(NEVER)


def beside(
    cluster: Cluster, spec: RlSpec, streams: list[PoolStream], borrow: Borrow, where: str, *, seed: int = 0,
    horizon_ns: int = 0,
) -> tuple[PoolRollouts, dict[str, pa.Table]]:  # fmt: skip
    """Runs rollouts and streams on one pool; returns the result and the table of lent devices."""
    if borrow.how is LendMethod.NONE:
        nodes = tuple(name for name in spec.rollout.nodes if name != BORROWED)
        if not nodes:
            raise UsageError("no device is lent, and rollouts have no nodes", where=where)
        alone = replace(spec, rollout=replace(spec.rollout, nodes=nodes))
        ran = run_rl(cluster, alone, where, seed=seed, horizon_ns=horizon_ns)
        ran.beside = {"streams": serve_streams(streams, seed=seed)}
        return ran, {}
    if BORROWED not in spec.rollout.nodes:
        raise UsageError(f"rollout: nodes: `{BORROWED}` is not among them", where=where, hint="nodes: [own, borrowed]")
    if any(group.spot for group in cluster.groups):
        raise UsageError(
            "`borrow` cannot be combined with nodes that may be reclaimed", where=where, hint="use one of them"
        )
    stream = next(one for one in streams if one.name == borrow.stream)
    if stream.tp % spec.rollout.tp:
        problem = f"rollouts need {spec.rollout.tp} of the {stream.tp} devices of a replica"
        raise UsageError(problem, where=where, hint="use a tp that divides that of the stream")
    loop = loop_of(cluster, spec, where, seed=seed, borrowed=stream.replicas * (stream.tp // spec.rollout.tp))
    own, table = _served(loop, spec, borrow, stream, where, seed)
    ran = PoolRollouts(cluster, loop, seed).finish()
    others = serve_streams([one for one in streams if one != stream], seed=seed)
    ran.beside = {"streams": {stream.name: own} | others}
    return ran, {"lent": table}


def _served(
    loop: RlLoop, spec: RlSpec, borrow: Borrow, stream: PoolStream, where: str, seed: int
) -> tuple[dict[str, Any], pa.Table]:
    from etude.world.serve import summary
    from etude.world.serve.elastic import Lending, slowed

    ready = placed(stream, seed=seed)
    slow = slowed(ready.groups[0].cost, 1 / (1 - borrow.share))
    room = _room(ready, spec, where)
    groups = [replace(ready.groups[0], blocks=room), replace(ready.groups[0], cost=slow, count=0, blocks=room)]
    lender = Lender(loop, borrow, stream, _most(ready, slow, borrow))
    control = Lending(lender.decide, borrow.every_ns, 1)
    found = replace(ready, groups=groups).serve(control=control)
    end = int(found.column("FINISH").max())
    if not loop.done:
        lender.after(max(end, lender.rows[-1][0]))
    time, devices, requests = (np.array(column) for column in zip(*lender.rows, strict=True))
    table = pa.table({"time_s": time / 1e9, "devices": devices.astype(np.float64), "requests": requests})
    own = summary(found, limits=stream.limits)
    return own | {"taken_back": lender.taken, "lends_up_to": lender.most}, table


def _most(ready: PreparedStream, slow: Any, borrow: Borrow) -> int:
    """Largest number of requests on a replica with which a pass keeps the limit per token while it lends; 0 for
    `fixed`."""
    from etude.world.serve.pools import decode_curve

    limit = ready.stream.limits.get("", {}).get("tpot_s")
    if borrow.how is LendMethod.FIXED:
        return 0
    if limit is None:
        raise UsageError("`guarded` needs a limit per token", where=ready.stream.name, hint="slo: {tpot: 50ms}")
    keys = int((ready.drawn.prompt + ready.drawn.output).mean())
    curve = decode_curve(slow, ready.engine.max_num_seqs, keys)
    return int((curve[1:] <= limit * 1e9 * borrow.margin).sum())


def _room(ready: PreparedStream, spec: RlSpec, where: str) -> int:
    """Blocks of keys and values that a serving replica has left, after the weights and keys of rollouts. Raises
    UsageError if there are none."""
    from etude.machine import open_system
    from etude.make.generate.model import open_model
    from etude.world.serve import Engine, deployed, replica_plan

    blocks = int(ready.groups[0].blocks)
    if not spec.model or not blocks:
        return blocks
    model, making = open_model(spec.model), spec.rollout
    one = deployed(model, replica_plan(model, making.tp), open_system(ready.stream.system), Engine())
    taken = one.weights_bytes + one.token_bytes * making.at_once * making.context
    left = blocks - int(np.ceil(taken / (ready.token_bytes * ready.engine.block_size)))
    if left < 1:
        problem = f"{taken / 1e9:,.1f} GB of rollouts on each device leave no memory for the stream"
        hint = "use a larger tp of the rollout, fewer at_once, or a shorter context"
        raise UsageError(problem, where=where, hint=hint)
    return left
