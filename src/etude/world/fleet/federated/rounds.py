"""federate(clients, ...): rounds of sampling, sending, local steps and answers, as columns.

With a server: it draws available clients, sends each its weights, and waits for the last answer, for a `quorum` of
answers, or for a deadline. Its link, if it has a limit, is shared max-min. In a swarm the clients that were drawn pass
their updates to one another in chunks, and the round ends when all hold all of them. Where clients are cut (`split`),
their steps go through the server, and what is sent back is adapters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np

from etude.base.errors import UsageError
from etude.kernels.arrays import I64, Bool
from etude.world.clock import NEVER, LoneEntity, run_alone
from etude.world.fleet.federated.clients import Clients
from etude.world.fleet.federated.links import finished, moved_by
from etude.world.fleet.federated.presence import GroupPresence, presence
from etude.world.fleet.federated.results import Federated
from etude.world.fleet.federated.sampling import SAMPLES, ClientStatistics, sampled
from etude.world.fleet.federated.shares import PARTS, first_part, untrained, work
from etude.world.fleet.federated.split import ClientSplit, Ended, split_round
from etude.world.fleet.federated.swarm import Swarm, spread

NOBODY: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRules:
    """Rules of every round."""

    model_bytes: float
    count: int
    """Clients per round."""
    steps: int = 1
    """Local steps of each."""
    sample: str = "uniform"
    deadline_s: float = 0.0
    """0: none."""
    quorum: int = 0
    """0: all answers are waited for."""
    server_bytes_per_s: float = 0.0
    """Each way; 0: no limit."""
    swarm: Swarm | None = None
    split: ClientSplit | None = None
    parts: int = PARTS
    leave: bool = False
    """A client that is away in the next round left in this one, before it answered."""


@dataclass(frozen=True, slots=True)
class Round:
    """One simulated round."""

    end_s: float
    taken: I64
    """Clients whose answers counted."""
    last: int
    """Client that ended it; -1: the deadline did."""
    down_bytes: float
    """Bytes that were sent before it ended."""
    up_bytes: float
    """Bytes of answers that counted; for split clients and in a swarm, bytes that were sent before it ended."""
    warm_s: float = 0.0
    bound_s: float = 0.0
    delivered: float = 1.0
    busy_s: float = 0.0
    """Busy time of the server's devices for split clients, summed."""
    wait_s: float = 0.0
    """Time clients wait for one of them."""
    until: Callable[[float], Ended] | None = None
    """The same round of split clients, if it is over by a moment of it."""

    def busy_until(self, end_s: float) -> float:
        """Busy time of the server's devices up to a moment of the round."""
        return self.until(end_s).busy_s if self.until is not None else 0.0


class CurrentRound(NamedTuple):
    """A round in progress."""

    begin_ns: int
    chosen: I64
    round: Round
    note: int
    """Number of its end in the agenda."""


@dataclass(slots=True, eq=False)
class FederatedRounds(LoneEntity):
    """Rounds on the clock, one after another."""

    clients: Clients
    rules: RoundRules
    rounds: int
    there: Bool
    """[round, client], and of one round more."""
    rng: np.random.Generator
    taken: I64 = field(init=False)
    seen: ClientStatistics = field(init=False)
    labels: int = field(init=False)
    shares: tuple[I64, I64] = field(init=False)
    """The first part of the weights that each client trains, and how many."""
    rows: list[tuple[float, ...]] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    """Of each round, how much later it began than after the rounds before it alone."""
    current: CurrentRound | None = None
    lost: int = 0
    """Rounds that were interrupted, and began again."""
    lost_busy_s: float = 0.0
    """Busy time of the server's devices in these."""
    split: ClientSplit | None = field(init=False)
    """As it was asked for; that of the rules has the devices that are there."""

    def __post_init__(self) -> None:
        self.split = self.rules.split
        self.taken, self.seen = np.zeros(len(self.clients), np.int64), ClientStatistics.nothing(len(self.clients))
        self.labels = len(np.unique(self.clients.label[self.clients.label >= 0]))
        self.shares = first_part(self.clients, self.rules.parts)
        self.later.note(0, "begin")

    def happen(self, kind: str, about: Any) -> None:
        if kind == "end":
            self._end()
        if not self.done:
            self._begin(len(self.rows))

    @property
    def done(self) -> bool:
        return len(self.rows) == self.rounds

    def lose(self, now: int) -> None:
        """The server is gone: nothing is left of the round in progress."""
        if (current := self.current) is not None:
            self.later.drop(current.note)
            self.lost_busy_s += current.round.busy_until((now - current.begin_ns) / 1e9)
            self.lost, self.current = self.lost + 1, None

    def serve_with(self, devices: int, now: int) -> None:
        """The server has these devices from the next round on; a round that was lost begins again."""
        if self.split is not None and devices:
            self.rules = replace(self.rules, split=replace(self.split, devices=devices))
        if devices and self.current is None and not self.done:
            self.now_ns = now
            self._begin(len(self.rows))

    def busy_s(self, now: int) -> float:
        """Busy time of the server's devices up to a moment, but for rounds that were lost."""
        found = float(self.found().column("server_busy_s").sum()) if self.rows else 0.0
        if (current := self.current) is not None:
            found += current.round.busy_until((now - current.begin_ns) / 1e9)
        return found

    def _begin(self, k: int) -> None:
        clients, rules, rng = self.clients, self.rules, self.rng
        chosen = np.sort(sampled(rng, np.flatnonzero(self.there[k]), clients, rules.count, rules.sample, self.seen))
        silent = rng.random(len(chosen)) < clients.drops[chosen]
        if rules.leave:
            silent |= ~self.there[k + 1][chosen]
        run = _cut if rules.split is not None else _served if rules.swarm is None else _spread
        one = run(clients, rules, chosen, silent, rng)
        end_ns = self.now_ns + round(one.end_s * 1e9)
        if end_ns >= NEVER:
            raise UsageError(f"{self.rounds:,} rounds take more than 146 years", hint="use fewer rounds, or a deadline")
        self.current = CurrentRound(self.now_ns, chosen, one, self.later.note(end_ns, "end"))

    def _end(self) -> None:
        assert self.current is not None
        begin_ns, chosen, one, _ = self.current
        self.late_s.append(begin_ns / 1e9 - sum(row[0] for row in self.rows) if self.lost else 0.0)
        self.current = None
        self.seen.watch(self.there[len(self.rows)])
        self.seen.drawn[chosen] += 1
        self.taken[one.taken] += 1
        first, many = self.shares
        missing = untrained(first[one.taken], many[one.taken], self.rules.parts)
        covered = len(np.unique(self.clients.label[one.taken])) / self.labels if self.labels else 1.0
        self.rows.append((
            one.end_s, len(chosen), len(one.taken), one.down_bytes, one.up_bytes, one.last, one.warm_s, one.bound_s,
            one.delivered, covered, missing, one.busy_s, one.wait_s,
        ))  # fmt: skip

    def found(self) -> Federated:
        """Of rounds that have ended."""
        there, rules = self.there[: len(self.rows)].sum(axis=0), self.rules
        return Federated(
            self.clients, np.array(self.rows), self.seen.drawn, self.taken, there, self.labels > 0, rules.parts,
            self.split, np.array(self.late_s),
        )  # fmt: skip


def rounds_of(
    clients: Clients, rules: RoundRules, *, rounds: int, together: GroupPresence | None = None, seed: int = 0
) -> FederatedRounds:
    """The rounds before the first. Raises UsageError."""
    _check(clients, rules)
    there = presence(clients, together or GroupPresence(), rounds + 1, seed)
    return FederatedRounds(clients, rules, rounds, there, np.random.default_rng((seed, 0)))


def federate(
    clients: Clients, *, rounds: int, together: GroupPresence | None = None, seed: int = 0, **rules: Any
) -> Federated:
    """All rounds; `rules` as `RoundRules` has them."""
    return run_alone(rounds_of(clients, RoundRules(**rules), rounds=rounds, together=together, seed=seed)).found()


def _check(clients: Clients, rules: RoundRules) -> None:
    if rules.sample not in SAMPLES:
        raise UsageError(f"--sample: unknown method `{rules.sample}`", hint=f"known: {', '.join(SAMPLES)}")
    if not 1 <= rules.count <= len(clients):
        raise UsageError(f"{rules.count} clients per round, but there are {len(clients)}", hint="use a smaller --count")
    if rules.quorum > rules.count:
        raise UsageError(
            f"a quorum of {rules.quorum} of {rules.count} clients is never reached", hint="use a smaller --quorum"
        )
    if rules.swarm is not None and (rules.quorum or rules.server_bytes_per_s):
        raise UsageError("--quorum and --server need rounds with a server", hint="--deadline 10min, or --share server")
    if rules.split is not None and (rules.swarm is not None or (clients.share < 1).any()):
        raise UsageError(
            "with --split, clients train all adapters, with a server", hint="--share server, without --train"
        )
    if rules.swarm is not None and (clients.share < 1).any():
        raise UsageError("in a swarm all clients must train all weights", hint="--train full, or --share server")


def fastest_s(clients: Clients, rules: RoundRules) -> float:
    """The shortest time in which a client can answer a server whose link has no limit."""
    down, up = rules.model_bytes / clients.down_bytes_per_s, clients.share * rules.model_bytes / clients.up_bytes_per_s
    return float((down + rules.steps * clients.step_s * work(clients.share) + up).min())


def _patient(rules: RoundRules, chosen: I64, silent: Bool) -> None:
    if silent.any() and not rules.deadline_s and len(chosen) - int(silent.sum()) < (rules.quorum or len(chosen)):
        raise UsageError(
            "the round never ends, because some clients never answer", hint="--deadline 10min, or --quorum"
        )


def _served(clients: Clients, rules: RoundRules, chosen: I64, silent: Bool, rng: np.random.Generator) -> Round:
    _patient(rules, chosen, silent)
    share, limit = clients.share[chosen], rules.server_bytes_per_s
    whole, speaks = np.full(len(chosen), rules.model_bytes), ~silent
    got = finished(whole, clients.down_bytes_per_s[chosen], np.zeros(len(chosen)), limit)
    ready = got + rules.steps * clients.step_s[chosen] * work(share)
    back = np.full(len(chosen), np.inf)
    size = share * rules.model_bytes
    back[speaks] = finished(size[speaks], clients.up_bytes_per_s[chosen][speaks], ready[speaks], limit)
    wanted = rules.quorum or len(chosen)
    order = np.argsort(back, kind="stable")
    end = float(back[order[wanted - 1]]) if len(chosen) >= max(rules.quorum, 1) else np.inf
    last = int(chosen[order[wanted - 1]]) if np.isfinite(end) else NOBODY
    if rules.deadline_s and rules.deadline_s < end:
        end, last = rules.deadline_s, NOBODY
    if not np.isfinite(end):
        raise UsageError("a round has too few clients to end", hint="--deadline 10min, or use a smaller --quorum")
    on_time = back <= end
    sent = len(chosen) * rules.model_bytes
    if (got > end).any():  # the round ends before they have the weights
        sent = float(moved_by(end, whole, clients.down_bytes_per_s[chosen], np.zeros(len(chosen)), limit).sum())
    return Round(end, chosen[on_time], last, sent, float(size[on_time].sum()))


def _cut(clients: Clients, rules: RoundRules, chosen: I64, silent: Bool, rng: np.random.Generator) -> Round:
    """Those that never answer leave before their first step."""
    _patient(rules, chosen, silent)
    split, who = rules.split, chosen[~silent]
    assert split is not None
    wanted = rules.quorum or len(chosen)
    if len(who) < wanted and not rules.deadline_s:
        raise UsageError("a round has too few clients to end", hint="--deadline 10min, or use a smaller --quorum")
    lengths = split.lengths(who, rules.steps, rng)
    phases = split.phases(who, lengths, clients.up_bytes_per_s, clients.down_bytes_per_s)

    def until(end_s: float) -> Ended:
        return split_round(phases, split.devices, rules.server_bytes_per_s, wanted, min(end_s, latest))

    latest = rules.deadline_s or np.inf
    one = until(latest)
    done = np.isfinite(one.end_s)
    full = int(done.sum()) >= wanted
    last = int(who[np.where(done, one.end_s, -1.0).argmax()]) if full else NOBODY
    return Round(
        one.round_s, who[done], last, one.down_bytes, one.up_bytes, busy_s=one.busy_s, wait_s=one.wait_s, until=until
    )


def _spread(clients: Clients, rules: RoundRules, chosen: I64, silent: Bool, rng: np.random.Generator) -> Round:
    """Those that never answer send nothing and are not waited for; clients that hold everything have taken part."""
    assert rules.swarm is not None
    who = chosen[~silent]
    if len(who) < 2:
        raise UsageError("a round has too few clients to exchange anything", hint="--share server, or more clients")
    ready = rules.steps * clients.step_s[who]
    one = spread(
        rules.swarm, rules.model_bytes, clients.up_bytes_per_s[who], clients.down_bytes_per_s[who], ready, rng,
        rules.deadline_s or np.inf,
    )  # fmt: skip
    whole = one.held >= 1.0
    end = float(one.end_s.max())
    if rules.deadline_s and not whole.all():
        end = rules.deadline_s
    last = int(who[one.end_s.argmax()]) if whole.all() else NOBODY
    return Round(
        end, who[whole], last, float(one.got_bytes.sum()), float(one.sent_bytes.sum()), one.warm_s,
        float(ready.min()) + one.bound_s, float(one.held.mean()),
    )  # fmt: skip
