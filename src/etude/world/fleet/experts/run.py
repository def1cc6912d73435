"""serve_group(prices, group, ...): a saturated group, from failure to failure, pass by pass.

`shrink`: a failure is noticed, the others form a group without the lost ranks and load lost experts from the nearest
copy; sequences of lost ranks are read again, and the group serves. Meanwhile new processes start and load what they
will hold from the others; when they are ready, the group stops once more to take them in. `restart`: all processes
start again, load their weights, and read all sequences again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I64
from etude.world.clock import NEVER, Event, LoneEntity, run_alone
from etude.world.fleet.contract import contract
from etude.world.fleet.costs import RESTART, SHRINK
from etude.world.fleet.experts.places import EMPTY, copies_of, loads_of, needs, spread, without
from etude.world.fleet.experts.spec import ExpertGroup, Failure, HostCopies, parse_failures
from etude.world.fleet.recovery import Recovery

if TYPE_CHECKING:
    from etude.world.fleet.experts.prices import ExpertPrices, Price

POLICIES: Final = (SHRINK, RESTART)
NODE, WAIT = "node", "wait"
"""Event: a node is there for ranks that were lost, about its number. State: a group that starts again waits for it."""
AGAIN: Final = 0.95
"""Fraction of the throughput before a failure at which it counts as recovered."""
PEER, HOST, STORAGE = "peer", "host", "storage"
PARTS: Final = {
    "serve": "useful", "cut": "redo", "detect": "detect", "regroup": "restart", "restart": "restart",
    "load": "restart", "redo": "redo", "wait": "idle",
}  # fmt: skip
"""State -> part of the time in the record."""


class GroupRow(NamedTuple):
    """A stretch of time in one state."""

    start_ns: int
    end_ns: int
    state: str
    """serve, cut (a pass that a failure ended), detect, wait, regroup, restart, load, redo."""
    ranks: int
    tokens: int


@dataclass(slots=True)
class Stop:
    """Why the group paused."""

    at_ns: int
    why: str
    end_ns: int = 0
    parts_ns: dict[str, int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=lambda: {PEER: 0, HOST: 0, STORAGE: 0})
    """Bytes by source."""
    experts: int = 0
    """Lost experts."""


class GroupRun(LoneEntity):
    """One group on the clock. Its time is the end of the last whole pass, or of what a pause has come to."""

    def __init__(self, prices: ExpertPrices, group: ExpertGroup, recovery: Recovery, recover: str, ranks: int) -> None:
        super().__init__()
        if recover not in POLICIES:
            raise UsageError(f"--recover: unknown policy `{recover}` for a group", hint=f"known: {', '.join(POLICIES)}")
        self.prices, self.group, self.recovery, self.recover = prices, group, recovery, recover
        self.node = min(prices.system.levels[0].size, ranks)
        self.experts = prices.model.experts
        self.healthy = spread(self.experts, group.redundant, ranks, self.node)
        self.place = self.healthy
        self.alive = np.ones(ranks, np.bool_)
        self.hosts = np.ones(-(-ranks // self.node), np.bool_)
        self.expert_bytes = prices.expert_bytes()
        self.rank_bytes = prices.rank_bytes(ranks, self.healthy.shape[1])
        self.owed = 0
        """Ranks whose sequences are to be read again."""
        self.waiting: list[Failure] = []
        """Ranks that come back, and when they are ready."""
        self.missing: list[Failure] = []
        """Ranks that come back as soon as there is a node for them."""
        self.replaces = True
        """Whether there is one at once."""
        self.phases: list[tuple[str, int]] = []
        """Parts of a pause that are left."""
        self.read, self.target = dict[str, int](), self.place
        """What a pause loads, and the places of experts after it."""
        self.rows: list[GroupRow] = []
        self.stops: list[Stop] = []
        self.configs: dict[tuple[int, float], dict[str, Any]] = {}
        self.horizon_ns = round(group.horizon_ns)
        tiers = {tier.name: tier for tier in prices.system.tiers}
        self.host_rate = tiers[HOST].read_bytes_per_s if HOST in tiers else 0.0
        if group.host_copies != HostCopies.NONE and not self.host_rate:
            raise UsageError(f"`{prices.system.name}` does not specify its hosts", hint="--host-copies none")
        self.peer_rate = prices.system.levels[-1].rate_bytes_per_ns * 1e9
        self.replace_ns = round(group.replace_ns or recovery.restart_ns)

    # -- what passes take ----------------------------------------------------------------------------------------------

    def price(self, place: I64, alive: NDArray[np.bool_]) -> Price:
        """Price of a pass of the present ranks, with experts in these places."""
        ranks, slots = int(alive.sum()), int((place != EMPTY).sum(axis=1).max())
        fullest = float(loads_of(place, self.experts).max()) * ranks / self.experts
        found = self.prices.at(ranks, slots, fullest)
        per_s = self.group.sequences * ranks / found.step_ns * 1e9
        self.configs.setdefault((ranks, round(fullest, 9)), {
            "ranks": ranks, "slots": slots, "fullest": fullest, "step_s": found.step_ns / 1e9, "tokens_per_s": per_s,
        })  # fmt: skip
        return found

    def _redo_ns(self, place: I64, alive: NDArray[np.bool_]) -> int:
        """Lost sequences are read again, one per pass of each present rank."""
        passes = -(-self.owed * self.group.sequences // int(alive.sum()))
        return passes * self.price(place, alive).read_ns

    # -- loads ---------------------------------------------------------------------------------------------------------

    def _host_rate(self, expert: int, rank: int) -> float:
        """Rate at which a rank reads an expert from the nearest host; 0: none has it."""
        if self.group.host_copies == HostCopies.NONE:
            return 0.0
        kept = set(np.flatnonzero(self.hosts).tolist())
        if self.group.host_copies == HostCopies.OWN:
            kept &= {int(r) // self.node for r in np.flatnonzero((self.healthy == expert).any(axis=1))}
        if not kept:
            return 0.0
        return self.host_rate if rank // self.node in kept else min(self.host_rate, self.peer_rate)

    def _load(self, old: I64, new: I64) -> tuple[int, dict[str, int]]:
        """Time in which ranks concurrently load their new experts, and bytes by source: a device that holds the expert,
        a host, or storage, whose link the ranks of a node share."""
        there = copies_of(old[self.alive], self.experts)
        own, stored, read = np.zeros(len(new)), np.zeros(len(self.hosts)), dict.fromkeys((PEER, HOST, STORAGE), 0)
        held = np.where(self.alive[:, None], old, EMPTY)
        for rank, wanted in enumerate(needs(held, new)):
            for expert in wanted:
                rate = self.peer_rate if there[expert] else self._host_rate(expert, rank)
                read[PEER if there[expert] else HOST if rate else STORAGE] += self.expert_bytes
                if rate:
                    own[rank] += self.expert_bytes / rate
                else:
                    stored[rank // self.node] += self.expert_bytes / self.group.storage_bytes_per_s
        return math.ceil((own + np.repeat(stored, self.node)[: len(own)]).max() * 1e9), read

    def _whole_load(self) -> tuple[int, dict[str, int]]:
        """All ranks load all their weights: from their host, from another where all hosts keep all, or from storage."""
        many = np.bincount(np.arange(len(self.alive)) // self.node, minlength=len(self.hosts)) * self.rank_bytes
        kept = self.hosts & (self.group.host_copies != HostCopies.NONE)
        far = ~kept & bool(kept.any()) & (self.group.host_copies == HostCopies.ALL)
        stored = ~kept & ~far
        read = {PEER: 0, HOST: int(many[~stored].sum()), STORAGE: int(many[stored].sum())}
        host_s = self.rank_bytes / self.host_rate if kept.any() else 0.0
        far_s = self.rank_bytes / min(self.host_rate, self.peer_rate) if far.any() else 0.0
        storage_s = int(many[stored].max(initial=0)) / self.group.storage_bytes_per_s
        return math.ceil(max(host_s, far_s, storage_s) * 1e9), read

    # -- on the clock --------------------------------------------------------------------------------------------------

    def advance(self, until_ns: int) -> Iterable[Event]:
        """The parts of a pause in sequence, and then whole passes, until ranks join."""
        while self._serve(until_ns) if not self.phases else self._go_on(until_ns):
            pass
        return ()

    def _go_on(self, until_ns: int) -> bool:
        """Goes on with the current part of a pause; whether it completed."""
        (state, left), stop = self.phases[0], self.stops[-1]
        took = min(left, until_ns - self.now_ns)
        if took:
            self._row(self.now_ns + took, state)
            stop.parts_ns[state] = stop.parts_ns.get(state, 0) + took
        stop.end_ns = self.now_ns
        if took < left:
            self.phases[0] = state, left - took
            return False
        self.phases.pop(0)
        if stop.why == "join":
            self._take_in(stop)
        elif state == "load":
            stop.read, self.place = self.read, self.target
            self.hosts |= self.recover == RESTART
        elif state == "redo":
            self.owed = 0
        return True

    def _serve(self, until_ns: int) -> bool:
        """Whole passes; whether ranks join before `until_ns`, at the end of the pass in which they became ready."""
        if self.now_ns >= until_ns:
            return False
        ranks, step_ns = int(self.alive.sum()), self.price(self.place, self.alive).step_ns
        first = min((w.at_ns for w in self.waiting), default=NEVER)
        joins = self.now_ns + max(-(-(first - self.now_ns) // step_ns), 0) * step_ns
        passes = (min(joins, until_ns) - self.now_ns) // step_ns
        if passes:
            self._row(self.now_ns + passes * step_ns, "serve", passes * ranks * self.group.sequences)
        if joins < until_ns:
            self._pause("join", {"regroup": math.ceil(self.recovery.regroup_ns)})
        return joins < until_ns

    def _row(self, end_ns: int, state: str, tokens: int = 0) -> None:
        ranks, last = int(self.alive.sum()), self.rows[-1] if self.rows else None
        if last is not None and (last.end_ns, last.state, last.ranks) == (self.now_ns, state, ranks):
            self.rows[-1] = last._replace(end_ns=end_ns, tokens=last.tokens + tokens)
        else:
            self.rows.append(GroupRow(self.now_ns, end_ns, state, ranks, tokens))
        self.now_ns = end_ns

    def _pause(self, why: str, parts_ns: dict[str, int], experts: int = 0) -> None:
        self.stops.append(Stop(self.now_ns, why, self.now_ns, experts=experts))
        self.phases = list(parts_ns.items())

    def on(self, event: Event) -> Iterable[Event]:
        """Ranks fail. A pass in progress yields no tokens, and a pause ends with the parts that it had."""
        if event.kind == NODE:
            self._come_back([one for one in self.missing if one.node == event.about], event.time_ns)
            return ()
        rules, failure = self.recovery, event.about
        if self.now_ns < event.time_ns:
            self._row(event.time_ns, "cut")
        lost = [rank for rank in failure.ranks if self.alive[rank]]
        if failure.node >= 0:
            self.hosts[failure.node] = False
        if not self.replaces:  # new processes on a node that fails are lost too
            lost += [rank for one in self.waiting if one.node == failure.node for rank in one.ranks]
            self.waiting = [one for one in self.waiting if one.node != failure.node]
        detect_ns, failure = math.ceil(rules.detect_ns), failure._replace(ranks=tuple(lost))
        self.alive[lost] = self.recover == RESTART
        if self.recover == RESTART or not (self.replaces or self.alive.any()):
            self.alive[:], self.waiting = True, []
            self.owed, self.target = len(self.alive), self.healthy
            self._pause(RESTART, {"detect": detect_ns, WAIT: NEVER})
            self.missing.append(failure)
        else:
            self.owed += len(lost)
            self.target = without(self.place, self.alive, self.experts)
            parts = {"detect": detect_ns, "regroup": math.ceil(rules.regroup_ns)}
            parts["load"], self.read = self._load(self.place, self.target)
            parts["redo"] = self._redo_ns(self.target, self.alive)
            self._pause("leave", parts, sum(map(len, needs(self.place, self.target))))
            if rules.reintegrate and lost:
                self.missing.append(failure._replace(at_ns=self.now_ns + detect_ns))
        if self.replaces:
            self._come_back(list(self.missing), self.now_ns)
        return ()

    def _come_back(self, found: list[Failure], now: int) -> None:
        """There are nodes for lost ranks: new processes start there, or all of them if the group starts again."""
        self.missing = [one for one in self.missing if one not in found]
        if not self.phases or self.phases[-1][0] != WAIT:
            for one in found:
                ready = max(one.at_ns, now) + self.replace_ns + self._join_ns(self.target, list(one.ranks))
                self.waiting.append(one._replace(at_ns=ready))
        elif not self.missing:
            restart_ns = math.ceil(self.recovery.restart_ns)
            load_ns, self.read = self._whole_load()
            again = [("restart", restart_ns), ("load", load_ns), ("redo", self._redo_ns(self.target, self.alive))]
            self.phases = [*self.phases[:-1], *again]

    def _home(self, back: list[int]) -> tuple[NDArray[np.bool_], I64]:
        """Ranks present together with these, and the resulting places of experts."""
        alive = self.alive.copy()
        alive[back] = True
        return alive, self.healthy if alive.all() else without(self.healthy, alive, self.experts)

    def _dense_bytes(self) -> int:
        return self.rank_bytes - self.healthy.shape[1] * self.expert_bytes

    def _join_ns(self, place: I64, back: list[int]) -> int:
        """In which ranks that come back get their weights from the others, and these the copies that had given way."""
        return math.ceil(self._load(place, self._home(back)[1])[0] + self._dense_bytes() / self.peer_rate * 1e9)

    def _take_in(self, stop: Stop) -> None:
        ready = [w for w in self.waiting if w.at_ns <= stop.at_ns]
        back = [rank for w in ready for rank in w.ranks]
        alive, new = self._home(back)
        stop.read = self._load(self.place, new)[1]
        stop.read[PEER] += self._dense_bytes() * len(back)
        self.alive, self.place = alive, new
        self.waiting = [w for w in self.waiting if w.at_ns > stop.at_ns]
        self.hosts[[w.node for w in ready if w.node >= 0]] = True

    # -- what came of it -----------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        tokens, seconds = sum(row.tokens for row in self.rows), self.horizon_ns / 1e9
        healthy = next(iter(self.configs.values()))
        return self._contract(tokens, seconds) | {
            "kind": "experts",
            "ranks": len(self.alive),
            "experts": self.experts,
            "redundant": self.group.redundant,
            "slots": int(self.healthy.shape[1]),
            "expert_bytes": self.expert_bytes,
            "rank_bytes": self.rank_bytes,
            "step_s": healthy["step_s"],
            "tokens": tokens,
            "tokens_per_s": tokens / seconds,
            "planned_tokens_per_s": healthy["tokens_per_s"],
            "down_s": sum(row.end_ns - row.start_ns for row in self.rows if row.state != "serve") / 1e9,
            "pauses": [self._shown(stop) for stop in self.stops],
            "configs": list(self.configs.values()),
            "curve": [
                {
                    "start_s": row.start_ns / 1e9, "end_s": row.end_ns / 1e9, "state": row.state, "ranks": row.ranks,
                    "tokens": row.tokens, "tokens_per_s": row.tokens / (row.end_ns - row.start_ns) * 1e9,
                }
                for row in self.rows
            ],
        }  # fmt: skip

    def _contract(self, tokens: int, seconds: float) -> dict[str, Any]:
        """Useful is the time of as many tokens with all ranks; passes of fewer ranks take longer (`degraded`), and one
        that the end cuts off is `idle`."""
        spent = dict.fromkeys(PARTS.values(), 0.0)
        for row in self.rows:
            spent[PARTS[row.state]] += (row.end_ns - row.start_ns) / 1e9
        served = spent.pop("useful")
        useful = min(tokens / next(iter(self.configs.values()))["tokens_per_s"], served)
        hourly, fails = self.prices.system.device.price, sum(stop.why != "join" for stop in self.stops)
        job = {"name": self.prices.model.name, "gpus": len(self.alive), "tokens": tokens, "interruptions": fails}
        return contract(
            seconds, useful, [job], lost=spent | {"degraded": served - useful}, tokens=tokens, interruptions=fails,
            cost=hourly * len(self.alive) * seconds / 3600 or None,
        )  # fmt: skip

    def _shown(self, stop: Stop) -> dict[str, Any]:
        parts = {name: ns / 1e9 for name, ns in stop.parts_ns.items()}
        wanted = AGAIN * self.group.sequences * len(self.alive) / next(iter(self.configs.values()))["step_s"]
        served = (row for row in self.rows if row.state == "serve" and row.start_ns >= stop.end_ns)
        again = (r.start_ns for r in served if r.tokens / (r.end_ns - r.start_ns) * 1e9 >= wanted)
        first = next(again, None)
        return {
            "at_s": stop.at_ns / 1e9,
            "why": stop.why,
            "pause_s": sum(s for name, s in parts.items() if name != "redo"),
            "parts_s": parts,
            "experts": stop.experts,
            "read_bytes": dict(stop.read),
            "again_s": None if first is None else (first - stop.at_ns) / 1e9,
        }


def serve_group(
    prices: ExpertPrices, group: ExpertGroup, *, ranks: int, recover: str = SHRINK, recovery: Recovery | None = None
) -> dict[str, Any]:
    """The record of `etude fleet experts --json`."""
    run = GroupRun(prices, group, recovery or Recovery(), recover, ranks)
    failures = parse_failures(group.fail, ranks=ranks, node=run.node)
    if late := [f for f in failures if f.at_ns >= run.horizon_ns]:
        raise UsageError(f"--fail: {late[0].at_ns / 1e9:g} s is after the end", hint="use a longer --horizon")
    run.price(run.place, run.alive)
    run_alone(run, run.horizon_ns, outside=[Event(one.at_ns, "fail", run.name, one) for one in failures])
    return run.record()


def group_tables(record: dict[str, Any]) -> dict[str, pa.Table]:
    """`states`: stretches of time; `events`: pauses."""
    events = [
        {name: pause[name] for name in ("at_s", "why", "pause_s", "experts", "again_s")}
        | {f"{place}_bytes": size for place, size in pause["read_bytes"].items()}
        for pause in record["pauses"]
    ]
    places = [(f"{place}_bytes", pa.int64()) for place in (PEER, HOST, STORAGE)]
    schema = pa.schema([
        ("at_s", pa.float64()), ("why", pa.string()), ("pause_s", pa.float64()), ("experts", pa.int64()),
        ("again_s", pa.float64()), *places,
    ])  # fmt: skip
    return {
        "states": pa.Table.from_pylist(record["curve"]),
        "events": pa.Table.from_pylist(events, schema),
        "jobs": pa.Table.from_pylist(record["jobs"]),
    }
