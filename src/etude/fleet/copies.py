"""The copies of a job's state: what each tier holds, what is on its way there, and what is left after a fault."""

from __future__ import annotations

from typing import Final, NamedTuple

from etude.fleet.account import Account, Mark
from etude.fleet.checkpoint import EVERYTHING, SaveTier

NEVER: Final = 1 << 62


class Pending(NamedTuple):
    ready_ns: int
    mark: Mark


class Copies:
    """Of one job."""

    def __init__(self, tiers: tuple[SaveTier, ...], step_ns: int) -> None:
        self.tiers = tiers
        self.steps = [tier.steps_between(step_ns) for tier in tiers]
        self.done: list[Mark | None] = [None] * len(tiers)
        self.pending: list[Pending | None] = [None] * len(tiers)
        self.writes = [0] * len(tiers)
        self.out_until_ns = 0
        """Remote storage cannot be reached before."""

    def next_step(self, step: int) -> int | None:
        """After which a save is due."""
        return min((step - step % n + n for n in self.steps), default=None)

    def regular(self, step: int, now_ns: int) -> tuple[int, int, int] | None:
        """The tier that is saved to next and again and again, its steps, and how often before another one is due; None
        where that is not all there is."""
        if not self.tiers or any(p is not None for p in self.pending) or now_ns < self.out_until_ns:
            return None
        first = min(range(len(self.steps)), key=self.steps.__getitem__)
        n = self.steps[first]
        if step % n or self.tiers[first].background:
            return None
        others = [step - step % m + m for i, m in enumerate(self.steps) if i != first]
        return first, n, (min(others) - step - 1) // n if others else NEVER

    def due(self, step: int, now_ns: int) -> list[int]:
        """Tiers to save to after this step, those that cannot be reached left out."""
        return [i for i, n in enumerate(self.steps) if step % n == 0 and self.reached(i, now_ns)]

    def reached(self, tier: int, now_ns: int) -> bool:
        return now_ns >= self.out_until_ns or self.tiers[tier].outlives < EVERYTHING

    def settle(self, now_ns: int) -> None:
        """What has been written by now is a copy."""
        for i, pending in enumerate(self.pending):
            if pending is not None and pending.ready_ns <= now_ns:
                self.done[i], self.pending[i] = pending.mark, None

    def busy_until(self, now_ns: int) -> int:
        """When the last background save ends that goes on now; 0 if there is none."""
        return max((p.ready_ns for p in self.pending if p is not None and p.ready_ns > now_ns), default=0)

    def contend(self, now_ns: int) -> float:
        """Steps beside background saves over usual ones."""
        return max(
            (t.contend for t, p in zip(self.tiers, self.pending, strict=True) if p is not None and p.ready_ns > now_ns),
            default=1.0,
        )

    def saved(self, tier: int, now_ns: int, account: Account, state_bytes: float, nodes: int) -> None:
        """The steps go on: a copy, or one that is being written."""
        it, mark = self.tiers[tier], account.mark()
        self.writes[tier] += 1
        if it.background:
            self.pending[tier] = Pending(now_ns + it.write_ns(state_bytes, nodes), mark)
        else:
            self.done[tier] = mark

    def struck(self, severity: int, now_ns: int) -> None:
        """Copies that do not outlive the fault are gone, and so is what was being written."""
        self.settle(now_ns)
        self.pending = [None] * len(self.tiers)
        for i, tier in enumerate(self.tiers):
            if tier.outlives < severity:
                self.done[i] = None

    def nearest(self, node_bytes: float, nodes: int) -> tuple[Mark, int, int] | None:
        """The newest copy, of several as new the one that loads soonest: mark, tier, time of the load."""
        found = [
            (-mark.step, tier.load_ns(node_bytes, nodes), i, mark)
            for i, (tier, mark) in enumerate(zip(self.tiers, self.done, strict=True))
            if mark is not None
        ]
        if not found:
            return None
        _, load_ns, i, mark = min(found)
        return mark, i, load_ns

    def back_to(self, mark: Mark) -> None:
        """Copies of steps that are lost are of no use."""
        for i, own in enumerate(self.done):
            if own is not None and own.step > mark.step:
                self.done[i] = None

    def safe_tier(self, severity: int, now_ns: int, state_bytes: float, nodes: int) -> tuple[int, int] | None:
        """Of the tiers that outlive a fault the one that is written soonest, and its time."""
        found = [
            (tier.write_ns(state_bytes, nodes), i)
            for i, tier in enumerate(self.tiers)
            if tier.outlives >= severity and self.reached(i, now_ns)
        ]
        if not found:
            return None
        write_ns, i = min(found)
        return i, write_ns
