"""A training job on the clock: steps, saves, faults and recoveries from event to event, never node by node.

At the same instant, work ends before faults occur. Whole steps between two events are one addition, so a month takes as
many iterations of the loop as it has saves and faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from etude.world.clock import NEVER, Agenda, Event
from etude.world.fleet.account import START, Account, Mark
from etude.world.fleet.checkpoint import NODE, severity_of
from etude.world.fleet.copies import Copies
from etude.world.fleet.costs import REDISTRIBUTE, REPLAN, RESTART, SHAPES, Config, Costs
from etude.world.fleet.events import EFFECTS, SCOPES, FleetEvents, given_up
from etude.world.fleet.faults import Effect
from etude.world.fleet.recovery import STAY, WAIT, Policy, Recovery, View, asked, restart

RUNNING, BUSY, WAITING = "running", "busy", "waiting"
DEAL: Final = "deal"
"""Redistributes micro-batches over replicas."""
RESTAGE: Final = "restage"
"""Redistributes layers over stages."""
SLOWEST: Final = 0.01
FAULT: Final = "fault"
"""Event of the clock, about a row of the job's events."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRun:
    """Result of one job from its start to the horizon."""

    account: Account
    copies: Copies
    hit: NDArray[np.bool_]
    """Events that affected the job."""
    interruptions: int
    transitions: dict[str, int]
    node_up_ns: int
    """Up time summed over all nodes; with unlimited spares no node is ever missing."""
    nodes: int
    horizon_ns: int
    without_copy: int
    """Recoveries that began again from step 0, because no copy was left."""


@dataclass(slots=True)
class JobPhase:
    part: str
    left_ns: int


@dataclass(slots=True)
class TrainingJob:
    name: str
    costs: Costs
    events: FleetEvents
    policy: Policy
    recovery: Recovery
    spares: int | None
    account: Account
    copies: Copies
    config: Config
    repairs: bool = True
    """Whether nodes come back to it once they are repaired; else only as they `join`."""
    pace: float = 1.0
    """Speed for want of power, at most 1."""
    linked: Callable[[Config], float] | None = None
    """Part of the speed that links leave in a state; None: all of it."""
    lent: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """Rows of `events` in which the job gives up nodes of its own accord, and which."""
    now: int = 0
    mode: str = RUNNING
    into: int = 0
    """Time in the current step, since the last step border."""
    todo: int = 0
    """Remaining time of the current step; 0: none."""
    slower: float = 1.0
    """How many times as long as planned the current step takes, as it is now."""
    worked: float = 0.0
    """What the time in the current step would be at full speed."""
    kept: int = 0
    """Micro-batches of the current step that replicas had done before a fault interrupted it."""
    going: tuple[int, int] | None = None
    """For a step that a fault interrupted: its progress, and when. The remaining replicas continue until they are
    notified."""
    factor: float = 1.0
    phases: list[JobPhase] = field(default_factory=list)
    after: tuple[str, ...] = ()
    """What follows the phases: ("saved",), ("decide",) or ("go",)."""
    target: Config | None = None
    saving: dict[int, float] = field(default_factory=dict)
    """Tiers of the current save, and the part of the state that each writes."""
    forced: int = -1
    """Event for which the state is saved at the next step border, before its nodes are given up."""
    forced_tier: int = 0
    change: str = ""
    """Change of the configuration at the next step border: a recovery that uses more nodes, or DEAL."""
    memory: bool = True
    """Whether the remaining replicas hold the state."""
    scope: str = ""
    up: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    used: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    down_until: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    slow: dict[int, float] = field(default_factory=dict)
    later: Agenda = field(default_factory=Agenda)
    hit: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    interruptions: int = 0
    without_copy: int = 0
    transitions: dict[str, int] = field(default_factory=dict)
    node_up_ns: int = 0
    seen_ns: int = 0
    """Time up to which node_up_ns is counted."""

    # -- time ----------------------------------------------------------------------------------------------------------

    def next_ns(self) -> int:
        """What it announced to itself, and while it saves its state to give nodes up: the next border of that."""
        if self.forced < 0:
            return self.later.next_ns()
        left = sum(phase.left_ns for phase in self.phases) if self.mode == BUSY else self.todo
        return min(self.later.next_ns(), self.now + max(left, 1))

    def advance(self, until_ns: int) -> Iterable[Event]:
        """Steps, saves and recoveries up to a moment, and what was to happen to its nodes by then."""
        while True:
            while self.now < (until := min(self.later.next_ns(), until_ns)):
                if self.mode == RUNNING:
                    self._run(until)
                elif self.mode == BUSY:
                    self._go_on(until)
                else:
                    self.account.waited(self.now, until, "idle", self.config)
                    self.now = until
            self._count_up()
            if self.later.next_ns() > until_ns:
                return ()
            self._later(*self.later.pop())

    def on(self, event: Event) -> Iterable[Event]:
        self._fault(int(event.about))
        return ()

    def join(self, nodes: NDArray[np.int64]) -> None:
        """The job gets further nodes."""
        self.up[nodes] = True
        self._back()

    def give_up(self, count: int) -> None:
        """The job gives up nodes, spares first: after a save at the end of the step if there is time for one."""
        order = np.flatnonzero(self.up)
        order = order[np.argsort(self.used[order], kind="stable")]
        spare = order[~self.used[order]]
        nodes = np.concatenate([spare, order[self.used[order]][::-1]])[:count]
        row = len(self.events)
        self.events, self.hit = given_up(self.events, self.now), np.append(self.hit, False)
        self.lent[row] = nodes
        self._give_up(row, NEVER)
        if self.forced != row:
            self._lose_nodes(row, planned=True)

    def throttle(self, pace: float) -> None:
        """From now on it runs at this part of its speed, at least a hundredth."""
        self.pace = pace
        self._speed()

    def relink(self, linked: Callable[[Config], float]) -> None:
        """From now on links leave this part of the speed."""
        self.linked = linked
        self._speed()

    @property
    def linked_pace(self) -> float:
        return 1.0 if self.linked is None else self.linked(self.config)

    def close(self) -> None:
        """The end: what was not done by then counts as idle time, and progress that no copy holds is lost."""
        self._cut("idle")
        undecided = self.mode == WAITING or self.after == ("decide",)
        if undecided and (not self.memory or self.policy is restart):
            self._load(self.costs.nodes)  # even without a reported fault

    def _count_up(self) -> None:
        self.node_up_ns += int(self.up.sum()) * (self.now - self.seen_ns)
        self.seen_ns = self.now

    def _step_ns(self) -> int:
        factor = self.factor * self.copies.contend(self.now)
        return self.config.step_ns if factor == 1.0 else round(self.config.step_ns * factor)

    def _run(self, until: int) -> None:
        """Runs steps up to the next save, or to `until`, which may be in the middle of a step."""
        if self.todo:
            took = min(self.todo, until - self.now)
            self.worked += took / self.slower
            if took < self.todo:
                self.into += took
                self.todo -= took
                self.now = until
                return
            start, worked = self.now - self.into, self.worked
            self.now += took
            self.into = self.todo = self.kept = 0
            if self.account.held:
                self.account.ended(start, self.now, self.config, worked)
            else:
                self.account.ran(start, self.now, 1, self.config)
            self._border(ended=True)
            return
        if self._border(ended=False):
            return
        step_ns, due = self._step_ns(), self.copies.next_step(self.account.step)
        if self._cycles(step_ns, until):
            return
        slower = self.copies.contend(self.now) > 1.0
        steps = (min(until, self.copies.busy_until(self.now) if slower else until) - self.now) // step_ns
        if due is not None:
            steps = min(steps, due - self.account.step)
        if steps:
            self.account.ran(self.now, self.now + steps * step_ns, steps, self.config)
            self.now += steps * step_ns
            self._border(ended=True)
        else:
            self._begin(step_ns, step_ns)

    def _begin(self, step_ns: int, left_ns: int) -> None:
        """Of a step that takes `step_ns` this is left."""
        self.todo, self.slower, self.worked = left_ns, step_ns / self.config.step_ns, 0.0

    def _cycles(self, step_ns: int, until: int) -> bool:
        """Runs many equal stretches, each with a save, at once: most of a month."""
        found = self.copies.regular(self.account.step, self.now)
        if found is None:
            return False
        tiers, steps, others, ready = found
        stall = sum(self.copies.tiers[i].stall_ns(self.costs.state_bytes, self._nodes()) for i in tiers)
        cycles = min((min(until, ready) - self.now) // (steps * step_ns + stall), others)
        if cycles < 2:
            return False
        end = self.now + cycles * (steps * step_ns + stall)
        self.account.ran(self.now, end, cycles * steps, self.config, cycles=cycles, stall_ns=stall)
        self.now = end
        for i in tiers:
            self.copies.cycled(i, self.account.mark(), cycles)
        return True

    def _border(self, *, ended: bool) -> bool:
        """Handles what waits for the end of a step; returns whether the steps stop for it."""
        self.copies.settle(self.now)
        due = self.copies.due(self.account.step, self.now) if ended else []
        if self.forced >= 0 and self.forced_tier not in due:
            due.append(self.forced_tier)
        if due:
            self._save(due)
            return True
        if self.change:
            self._take_in()
            return True
        return False

    def _nodes(self) -> int:
        return -(-self.config.gpus // self.costs.gpus_per_node)

    def _save(self, tiers: list[int]) -> None:
        """Saves to all tiers that are due, one after the other; waits for a tier that still writes."""
        stall, nodes = 0, self._nodes()
        for i in tiers:
            pending = self.copies.pending[i]
            stall = max(stall, pending.ready_ns - self.now) if pending is not None else stall
        for i in tiers:
            whole = self.forced >= 0 and i == self.forced_tier  # nodes leave: a copy in progress does not help
            stall += self.copies.stall_ns(i, self.account.step, self.costs.state_bytes, nodes, whole=whole)
        self.saving = {i: self.copies.part(i, self.account.step) for i in tiers}
        self._busy([JobPhase("checkpoint", stall)], ("saved",))

    def _busy(self, phases: list[JobPhase], after: tuple[str, ...]) -> None:
        self.mode, self.phases, self.after = BUSY, phases, after
        if not any(phase.left_ns for phase in phases):
            self._go_on(self.now)

    def _go_on(self, until: int) -> None:
        """Runs one phase, or a part of it up to `until`."""
        while self.phases and self.phases[0].left_ns == 0:
            self.phases.pop(0)
        if self.phases:
            phase = self.phases[0]
            end = min(self.now + phase.left_ns, until)
            self.account.waited(self.now, end, phase.part, self.target or self.config)
            phase.left_ns -= end - self.now
            self.now = end
            if any(p.left_ns for p in self.phases):
                return
        self.phases = []
        self._phases_done()

    def _phases_done(self) -> None:
        (what, *_), self.after = self.after, ()
        self.mode = RUNNING
        if what == "saved":
            self.copies.settle(self.now)
            for i, part in self.saving.items():
                self.copies.saved(i, self.now, self.account, self.costs.state_bytes, self._nodes(), part)
            self.saving = {}
            if self.forced >= 0:
                event, self.forced = self.forced, -1
                self.copies.at_once(self.forced_tier)
                self._lose_nodes(event, planned=True)
        elif what == "decide":
            self._decide()
        elif self.target is not None:
            self._start(self.target)

    def _cut(self, part: str) -> None:
        """Drops the current step; the part that a fault interrupted and that was not resumed is repeated."""
        self.account.let_go("redo" if self.going is not None else part)
        self.account.part_of_step(self.now - self.into, self.now, part, self.config, self.worked)
        self.into = self.todo = self.kept = 0
        self.going = None

    # -- what happens --------------------------------------------------------------------------------------------------

    def _struck(self, event: int) -> NDArray[np.int64]:
        if event in self.lent:
            return self.lent[event]
        first, count = int(self.events.node[event]), int(self.events.nodes[event])
        return np.arange(max(first, 0), max(first, 0) + count)

    def _fault(self, event: int) -> None:
        effect = EFFECTS[self.events.effect[event]]
        ends = self.now + int(self.events.duration_ns[event])
        if effect == Effect.STORAGE:
            self.copies.out_until_ns = max(self.copies.out_until_ns, ends)
            self.hit[event] = True
        elif effect == Effect.SLOW:
            self.slow[event] = float(self.events.factor[event])
            self.later.note(ends, "as usual", event)
            self.hit[event] = self._speed()
            detect = int(self.events.detect_ns[event])
            if self.recovery.eject:
                noticed = self.now + (detect if detect >= 0 else int(self.recovery.detect_ns))
                if noticed < ends:
                    self.later.note(noticed, "leave", event)
            elif int(self.events.nodes[event]):
                noticed = self.now + (detect if detect >= 0 else int(self.recovery.detect_ns))
                if noticed < ends:
                    self.later.note(noticed, "slow", event)
        elif effect == Effect.PREEMPT and self.events.notice_ns[event]:
            self.later.note(self.now + int(self.events.notice_ns[event]), "taken", event)
            self._give_up(event, int(self.events.notice_ns[event]))
        else:
            self._lose_nodes(event)

    def _later(self, what: str, event: int) -> None:
        if what == "as usual":
            self.slow.pop(event, None)
            self._speed()
            if self.config.absorbs > 1.0 and self.mode == RUNNING:
                self.change = DEAL
        elif what == "slow":
            if event in self.slow and self.mode == RUNNING and not self.change and self._felt() > self.config.absorbs:
                view = self._view(lost=False)._replace(slow=self._felt())
                if asked(self.policy, view) == REPLAN:
                    self.change = DEAL
        elif what == "leave":
            if event in self.slow and self.used[self._struck(event)].any():
                self._give_up(event, NEVER)
        elif what == "taken":
            if self.forced == event:
                self.forced = -1
            self._lose_nodes(event)
        else:
            struck = self._struck(event)
            self.up[struck[self.down_until[struck] <= self.now]] = True
            self._back()

    def _give_up(self, event: int, within_ns: int) -> None:
        """Saves the state at the next step border, if there is time, before nodes are taken away or left out as
        slow."""
        if self.mode != RUNNING or self.forced >= 0 or not self.used[self._struck(event)].any():
            return
        safe = self.copies.safe_tier(NODE, self.account.step + 1, self.now, self.costs.state_bytes, self._nodes())
        if safe is not None and self.todo + safe[1] <= within_ns:
            self.forced, self.forced_tier = event, safe[0]

    def _felt(self) -> float:
        felt = [f for e, f in self.slow.items() if not self.events.nodes[e] or self.used[self._struck(e)].any()]
        return max(felt, default=1.0)

    def _slowest(self) -> int:
        """Index of the slowest node among the nodes of the job."""
        worst = max(self.slow, key=lambda event: self.slow[event], default=-1)
        struck = self._struck(worst)[:1] if worst >= 0 and self.events.nodes[worst] else np.zeros(0, np.int64)
        place = int(self.used[: int(struck[0])].sum()) if len(struck) else 0
        return min(place, self.costs.nodes - 1)

    def _speed(self) -> bool:
        """Sets the step time by the slowest of the job's nodes; returns whether it changed."""
        factor = max(self._felt() / self.config.absorbs, 1.0) / max(self.pace * self.linked_pace, SLOWEST)
        changed = factor != self.factor
        if changed and self.todo:
            self.todo = max(round(self.todo * factor / self.factor), 1)
            self.slower *= factor / self.factor
        self.factor = factor
        return changed

    def _lose_nodes(self, event: int, *, planned: bool = False) -> None:
        """Fail-stop of an event's nodes, or of the processes if it has none."""
        struck = self._struck(event)
        felt = bool(self.used[struck].any()) if len(struck) else True
        if self.spares is not None:
            fresh = struck[self.up[struck]]
            lasting = int(self.events.duration_ns[event])
            if event in self.slow:
                lasting = max(int(self.events.time_ns[event]) + lasting - self.now, 0)
            self.up[fresh] = False
            self.down_until[fresh] = self.now + lasting
            if len(fresh) and self.repairs:
                self.later.note(self.now + lasting, "repaired", event)
        if len(struck):  # their replacements are not slow
            self.slow = {e: f for e, f in self.slow.items() if not np.isin(self._struck(e), struck).any()}
        if not felt:
            return
        self.used[struck] = False
        self.hit[event] = True
        self.interruptions += event not in self.lent
        self.scope = SCOPES[self.events.scope[event]]
        if self.mode == RUNNING and self.todo:
            self.account.hold(self.now - self.into, self.now, self.config, self.worked)
            self.going = (self.into, self.now)
            self.into = self.todo = 0
        self.forced, self.change, self.saving = -1, "", {}
        severity = severity_of(SCOPES[self.events.scope[event]], len(struck))
        self.copies.struck(severity, self.now)
        replicas = self.config.gpus // self.costs.replica_gpus
        each = self.costs.slow_replicas or max(self.costs.gpus_per_node // self.costs.replica_gpus, 1)
        killed = max(len(struck), 1) * each
        self.memory = self.memory and self.costs.replicated and killed < replicas
        detect = 0 if planned else int(self.events.detect_ns[event])
        self.target = None
        self._busy([JobPhase("detect", detect if detect >= 0 else int(self.recovery.detect_ns))], ("decide",))

    # -- recovery ------------------------------------------------------------------------------------------------------

    def _view(self, *, lost: bool) -> View:
        repairs = self.later.times("repaired")
        up, used = int(self.up.sum()), int(self.used.sum())
        return View(
            now_s=self.now / 1e9, lost=lost, scope=self.scope, nodes_needed=self.costs.nodes, nodes_up=up,
            nodes_in_job=used, spare_nodes=up - int((self.up & self.used).sum()),
            next_repair_s=min(repairs) / 1e9 if repairs else None,
        )  # fmt: skip

    def _decide(self) -> None:
        """Decides on a recovery, after a fault was noticed or a repair has ended."""
        answer, up = asked(self.policy, self._view(lost=True)), int(self.up.sum())
        config = None if answer == WAIT else self.costs.at(answer if answer in SHAPES else RESTART, up)
        if config is None:
            self.mode = WAITING
            return
        self.transitions[answer] = self.transitions.get(answer, 0) + 1
        self._settle_step(answer)
        nodes = -(-config.gpus // self.costs.gpus_per_node)
        if answer != RESTART and self.memory:
            new = nodes > int(self.used.sum())
            copy = round(self.costs.node_bytes / self.costs.node_bytes_per_s * 1e9) if new else 0
            wait = int(self.recovery.regroup_ns) + max(copy, self.costs.move_ns(config))
        else:
            wait = self._load(nodes) + int(self.recovery.restart_ns if answer == RESTART else self.recovery.regroup_ns)
        self.target = config
        self._busy([JobPhase("restart", wait)], ("go",))

    def _settle_step(self, answer: str) -> None:
        """Decides what counts of the step that a fault interrupted. If processes live and replicas hold the state, they
        end it where they no longer need the lost ones; under `redistribute` they keep the micro-batches that they have
        done."""
        lives = answer != RESTART and self.memory
        rounds = self.config.rounds
        if self.going is not None:
            into, since = self.going
            self.going = None
            so_far = (into + self.now - since) / self.factor
            if lives and rounds is not None and not self.kept:
                whole = self.config.step_ns
                if into / self.factor >= rounds.alone_ns and so_far >= whole:
                    self.account.ended(self.now, self.now, self.config)
                    return
            self.kept = min(self.kept + rounds.done(so_far), rounds.most) if rounds is not None else 0
        if not (lives and answer == REDISTRIBUTE and self.kept):
            self.kept = 0
            self.account.let_go("redo")

    def _load(self, nodes: int) -> int:
        """Goes back to the nearest copy; returns the time of its load, including the wait for storage, ns."""
        found = self.copies.nearest(self.costs.node_bytes, nodes)
        mark: Mark = found[0] if found is not None else START
        self.without_copy += found is None and self.account.step > 0
        self.account.back_to(mark)
        self.copies.back_to(mark)
        if found is None:
            return 0
        wait = 0 if self.copies.readable(found[1], self.now) else self.copies.out_until_ns - self.now
        return wait + found[2]

    def _start(self, config: Config) -> None:
        """Starts on as many nodes as the configuration needs, preferring those that were in the job."""
        self.config, self.target, self.memory = config, None, True
        if self.kept and config.rounds is not None:
            step_ns = self._step_ns()
            self._begin(step_ns, max(step_ns - round(self.kept * config.rounds.each_ns * self.factor), 1))
        elif self.account.held:
            self.kept = 0
            self.account.let_go("redo")
        order = np.flatnonzero(self.up)
        order = order[np.argsort(~self.used[order], kind="stable")]
        self.used[:] = False
        self.used[order[: self._nodes()]] = True
        self._speed()

    def _back(self) -> None:
        """Handles nodes that are up again."""
        if self.mode == WAITING:
            self._decide()
        elif self.mode == RUNNING and self.recovery.reintegrate and not self.change:
            answer = asked(self.policy, self._view(lost=False))
            config = self.costs.at(answer, int(self.up.sum())) if answer in SHAPES else None
            if answer not in (STAY, WAIT) and config is not None and config.gpus > self.config.gpus:
                self.change = answer

    def _deal(self) -> None:
        """Redistributes micro-batches by the speed of replicas, or layers over stages; or returns to the plan. The
        state of moved layers is sent, in both directions."""
        slow, all_there = self._felt(), self.config.gpus == self.costs.healthy.gpus
        config = self.costs.slowed(slow, self._slowest()) if all_there else None
        if config is None and self.config.absorbs > 1.0:
            config = self.costs.healthy
        if config is None or config is self.config or not all_there:
            return
        what = RESTAGE if config.moved_bytes or self.config.moved_bytes else DEAL
        self.transitions[what] = self.transitions.get(what, 0) + 1
        self.target = config
        moves = max(self.costs.move_ns(config), self.costs.move_ns(self.config))
        self._busy([JobPhase("restart", int(self.recovery.regroup_ns) + moves)], ("go",))

    def _take_in(self) -> None:
        answer, self.change = self.change, ""
        if answer == DEAL:
            self._deal()
            return
        config = self.costs.at(answer, int(self.up.sum()))
        if config is None or config.gpus <= self.config.gpus:
            return
        self.transitions["reintegrate"] = self.transitions.get("reintegrate", 0) + 1
        copy = round(self.costs.node_bytes / self.costs.node_bytes_per_s * 1e9)
        moves = max(self.costs.move_ns(config), self.costs.move_ns(self.config))
        self.target = config
        self._busy([JobPhase("restart", int(self.recovery.regroup_ns) + max(copy, moves))], ("go",))
