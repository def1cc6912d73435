"""The copies of a job's state: what each tier holds, what is being written, and what is left after a fault."""

from __future__ import annotations

from typing import Final, NamedTuple

from etude.world.fleet.account import Account, Mark
from etude.world.fleet.checkpoint import EVERYTHING, SaveTier

NEVER: Final = 1 << 62


class Base(NamedTuple):
    """The whole copy that differences refer to."""

    tier: int
    step: int


class Pending(NamedTuple):
    ready_ns: int
    mark: Mark
    base: Base | None


class Copies:
    """Copies of one job."""

    def __init__(self, tiers: tuple[SaveTier, ...], step_ns: int) -> None:
        self.tiers = tiers
        self.steps = [tier.steps_between(step_ns) for tier in tiers]
        self.done: list[Mark | None] = [None] * len(tiers)
        self.pending: list[Pending | None] = [None] * len(tiers)
        self.bases: list[Base | None] = [None] * len(tiers)
        """For tiers with differences: the base of their copy; itself if it holds a whole one."""
        self.writes = [0] * len(tiers)
        self.written = [0.0] * len(tiers)
        """Times the state."""
        self.out_until_ns = 0
        """Remote storage is unreachable until then."""

    def next_step(self, step: int) -> int | None:
        """After which a save is due."""
        return min((step - step % n + n for n in self.steps), default=None)

    def regular(self, step: int, now_ns: int) -> tuple[list[int], int, int, int] | None:
        """The tiers that are saved to regularly from now on, their steps, how often before another one is due, and
        until when at most; None if saves are not regular."""
        if not self.tiers or now_ns < self.out_until_ns or self.contend(now_ns) > 1.0:
            return None
        n = min(self.steps)
        often = [i for i, steps in enumerate(self.steps) if steps == n]
        if step % n or any(not self._settled(i, step) for i in often):
            return None
        others = [step - step % m + m for m in self.steps if m != n]
        ready = [p.ready_ns for p in self.pending if p is not None]
        return often, n, (min(others) - step - 1) // n if others else NEVER, min(ready, default=NEVER)

    def _settled(self, tier: int, step: int) -> bool:
        """Whether the next saves of a tier are all equal."""
        it, own = self.tiers[tier], self.done[tier]
        if it.background:
            return False
        return it.is_whole or (own is not None and own.step == step and self.base_of(tier) is not None)

    def due(self, step: int, now_ns: int) -> list[int]:
        """Tiers to save to after this step, without unreachable ones."""
        return [i for i, n in enumerate(self.steps) if step % n == 0 and self.reached(i, now_ns)]

    def reached(self, tier: int, now_ns: int) -> bool:
        return now_ns >= self.out_until_ns or self.tiers[tier].outlives < EVERYTHING

    def readable(self, tier: int, now_ns: int) -> bool:
        """Whether the copy of a tier can be read now, its base too."""
        base = self.bases[tier]
        return self.reached(tier, now_ns) and (base is None or self.reached(base.tier, now_ns))

    def settle(self, now_ns: int) -> None:
        """What has been written by now becomes a copy."""
        for i, pending in enumerate(self.pending):
            if pending is not None and pending.ready_ns <= now_ns:
                self._holds(i, pending.mark, pending.base)
                self.pending[i] = None

    def busy_until(self, now_ns: int) -> int:
        """When the last current background save ends; 0 if there is none."""
        return max((p.ready_ns for p in self.pending if p is not None and p.ready_ns > now_ns), default=0)

    def contend(self, now_ns: int) -> float:
        """Step time during background saves over the usual one."""
        return max(
            (t.contend for t, p in zip(self.tiers, self.pending, strict=True) if p is not None and p.ready_ns > now_ns),
            default=1.0,
        )

    # -- differences ---------------------------------------------------------------------------------------------------

    def base_of(self, tier: int) -> Base | None:
        """The base of a tier with differences, if it still exists."""
        base = self.bases[tier]
        if self.done[tier] is None or base is None:
            return None
        own = self.done[base.tier]
        return base if base.tier == tier or (own is not None and own.step == base.step) else None

    def _next_base(self, tier: int) -> Base | None:
        """For the next differences: the newest whole copy of another tier, or the base that the tier has."""
        whole = [Base(i, m.step) for i, m in enumerate(self.done) if m is not None and self.tiers[i].is_whole]
        known = self.base_of(tier)
        return max([*whole, *([known] if known else [])], key=lambda base: base.step, default=None)

    def part(self, tier: int, step: int) -> float:
        """Fraction of the state that a save after this step writes: what changed since the copy before, or since the
        base."""
        it = self.tiers[tier]
        if it.is_whole:
            return 1.0
        base = self._next_base(tier)
        if base is None:
            return 1.0
        own = self.done[tier]
        last = own.step if own is not None and self.base_of(tier) is not None else base.step
        return min(it.share * (step - max(last, base.step)) / self.steps[tier], 1.0)

    def _holds(self, tier: int, mark: Mark, base: Base | None) -> None:
        """A copy is complete. Differences that reach beyond a new whole copy refer to that one from now on."""
        self.done[tier], self.bases[tier] = mark, base
        if self.tiers[tier].is_whole:
            for i, own in enumerate(self.done):
                if (
                    not self.tiers[i].is_whole
                    and own is not None
                    and own.step >= mark.step
                    and self.base_of(i) is not None
                ):
                    self.bases[i] = Base(tier, mark.step)

    def _load_ns(self, tier: int, node_bytes: float, nodes: int) -> int | None:
        """Load time of a copy: all of it, or its base and the differences since; None: the base is lost."""
        it, mark = self.tiers[tier], self.done[tier]
        if it.is_whole or mark is None:
            return it.load_ns(node_bytes, nodes)
        base = self.base_of(tier)
        if base is None:
            return None
        since = min(it.share * (mark.step - base.step) / self.steps[tier], 1.0)
        more = it.load_ns(node_bytes * since, nodes) if since else 0
        return self.tiers[base.tier].load_ns(node_bytes, nodes) + more

    # -- saves ---------------------------------------------------------------------------------------------------------

    def stall_ns(self, tier: int, step: int, state_bytes: float, nodes: int, *, whole: bool = False) -> int:
        """How long steps wait for a save after this step; `whole`: until the last byte is written."""
        it, part = self.tiers[tier], self.part(tier, step)
        return (it.write_ns if whole else it.stall_ns)(state_bytes, nodes, part)

    def saved(
        self, tier: int, now_ns: int, account: Account, state_bytes: float, nodes: int, part: float | None = None
    ) -> None:
        """The steps continue, with a complete copy or one that is being written. `part`: the fraction when the save
        began; another tier that was saved to at the same step does not change it."""
        it, mark = self.tiers[tier], account.mark()
        part, base = self.part(tier, mark.step) if part is None else part, None
        if not it.is_whole:
            base = self._next_base(tier) or Base(tier, mark.step)
        self.writes[tier] += 1
        self.written[tier] += part
        if it.background:
            self.pending[tier] = Pending(now_ns + it.write_ns(state_bytes, nodes, part), mark, base)
        else:
            self._holds(tier, mark, base)

    def cycled(self, tier: int, mark: Mark, cycles: int) -> None:
        """This many usual saves in sequence, the last of them here."""
        self.writes[tier] += cycles
        self.written[tier] += cycles * self.tiers[tier].share
        self._holds(tier, mark, self.bases[tier])

    def at_once(self, tier: int) -> None:
        """What is being written to a tier was waited for."""
        pending, self.pending[tier] = self.pending[tier], None
        if pending is not None:
            self._holds(tier, pending.mark, pending.base)

    def struck(self, severity: int, now_ns: int) -> None:
        """Copies that do not survive the fault are lost, and so is what was being written."""
        self.settle(now_ns)
        self.pending = [None] * len(self.tiers)
        for i, tier in enumerate(self.tiers):
            if tier.outlives < severity:
                self.done[i] = self.bases[i] = None

    def nearest(self, node_bytes: float, nodes: int) -> tuple[Mark, int, int] | None:
        """The newest copy, of equally new ones the one that loads fastest: mark, tier, time of the load."""
        found = [
            (-mark.step, load_ns, i, mark)
            for i, mark in enumerate(self.done)
            if mark is not None and (load_ns := self._load_ns(i, node_bytes, nodes)) is not None
        ]
        if not found:
            return None
        _, load_ns, i, mark = min(found)
        return mark, i, load_ns

    def back_to(self, mark: Mark) -> None:
        """Drops copies of lost steps."""
        for i, own in enumerate(self.done):
            if own is not None and own.step > mark.step:
                self.done[i] = self.bases[i] = None

    def safe_tier(
        self, severity: int, step: int, now_ns: int, state_bytes: float, nodes: int
    ) -> tuple[int, int] | None:
        """The tier, among those that survive a fault, that is written soonest, and its time."""
        found = [
            (self.stall_ns(i, step, state_bytes, nodes, whole=True), i)
            for i, tier in enumerate(self.tiers)
            if tier.outlives >= severity and self.reached(i, now_ns)
        ]
        if not found:
            return None
        write_ns, i = min(found)
        return i, write_ns
