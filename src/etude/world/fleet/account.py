"""Where the time of a job goes, to the nanosecond: useful time and the lost parts add up to the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from etude.world.fleet.costs import Config

LOST: Final = ("detect", "restart", "redo", "checkpoint", "degraded", "idle")
TRAIN, REDO = "train", "redo"


class Mark(NamedTuple):
    """A point to which the job can return."""

    step: int
    useful_ns: int
    degraded_ns: int
    tokens: int
    row: int
    """Rows of `states` before it."""


START: Final = Mark(0, 0, 0, 0, 0)


class AccountRow(NamedTuple):
    start_ns: int
    end_ns: int
    state: str
    step: int
    """The first."""
    steps: int
    tokens: int
    useful_ns: int
    gpus: int
    config: str
    cycles: int = 1
    """Number of stretches of equal steps, each followed by a save."""
    stall_ns: int = 0
    """Stall of such a save."""


@dataclass(slots=True)
class Account:
    healthy: Config
    idle_w: float
    useful_ns: int = 0
    lost_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOST, 0))
    tokens: int = 0
    """Tokens of steps that are kept."""
    computed: int = 0
    """Tokens of all steps that ended."""
    step: int = 0
    energy_j: float = 0.0
    rows: list[AccountRow] = field(default_factory=list)
    configs: dict[tuple[str, int], Config] = field(default_factory=dict)
    """States in which steps ended, by name and devices."""
    held: list[int] = field(default_factory=list)
    """Rows of the current step, which a fault interrupted and which may still end; their time is booked when it
    does."""

    @property
    def held_ns(self) -> int:
        return sum(self.rows[k].end_ns - self.rows[k].start_ns for k in self.held)

    def hold(self, start_ns: int, end_ns: int, config: Config, worked_ns: float) -> None:
        """A part of a step: whether it counts is decided later. `worked_ns`: what it would take at full speed."""
        if end_ns == start_ns:
            return
        self.held.append(len(self.rows))
        self.rows.append(AccountRow(start_ns, end_ns, TRAIN, self.step, 0, 0, 0, config.gpus, config.name))
        self._book_part(end_ns - start_ns, config, worked_ns)

    def let_go(self, part: str) -> None:
        """The held parts are lost."""
        self.lost_ns[part] += self.held_ns
        for k in self.held:
            self.rows[k] = self.rows[k]._replace(state=part)
        self.held = []

    def ended(self, start_ns: int, end_ns: int, config: Config, worked_ns: float = 0.0) -> None:
        """The step whose parts are held ends, with a last part."""
        whole = self.held_ns + end_ns - start_ns
        useful = min(config.tokens * self.healthy.step_ns // self.healthy.tokens, whole)
        if end_ns > start_ns:
            self.hold(start_ns, end_ns, config, worked_ns)
        for k in self.held:
            row = self.rows[k]
            mine = min(useful, row.end_ns - row.start_ns)
            self.rows[k] = row._replace(useful_ns=mine)
            useful -= mine
            self.useful_ns += mine
            self.lost_ns["degraded"] += row.end_ns - row.start_ns - mine
        self.configs.setdefault((config.name, config.gpus), config)
        last = self.held[-1]
        self.rows[last] = self.rows[last]._replace(steps=1, tokens=config.tokens)
        self.held = []
        self.tokens += config.tokens
        self.computed += config.tokens
        self.step += 1

    def ran(
        self, start_ns: int, end_ns: int, steps: int, config: Config, *, cycles: int = 1, stall_ns: int = 0
    ) -> None:
        """Whole steps. Time beyond what as many tokens take as planned is `degraded`. With `cycles` they were cut into
        this many equal stretches, each followed by a save."""
        elapsed, tokens = end_ns - start_ns - cycles * stall_ns, steps * config.tokens
        self.lost_ns["checkpoint"] += cycles * stall_ns
        self.configs.setdefault((config.name, config.gpus), config)
        usual = tokens * self.healthy.step_ns // self.healthy.tokens
        useful = min(usual, elapsed)
        self.useful_ns += useful
        self.lost_ns["degraded"] += elapsed - useful
        self.tokens += tokens
        self.computed += tokens
        self.rows.append(
            AccountRow(
                start_ns, end_ns, TRAIN, self.step, steps, tokens, useful, config.gpus, config.name, cycles, stall_ns
            )
        )
        self.step += steps
        more = elapsed - steps * config.step_ns
        more = max(more, 0) + cycles * stall_ns
        self.energy_j += steps * config.energy_j + more / 1e9 * self.idle_w * config.gpus

    def part_of_step(self, start_ns: int, end_ns: int, part: str, config: Config, worked_ns: float) -> None:
        """A step that does not end: cut off by a fault, or by the end."""
        if end_ns == start_ns:
            return
        self._lose(start_ns, end_ns, part, config)
        self._book_part(end_ns - start_ns, config, worked_ns)

    def _book_part(self, took_ns: int, config: Config, worked_ns: float) -> None:
        """A slower step takes the same energy above idle."""
        self.energy_j += config.energy_j * min(worked_ns / config.step_ns, 1.0)
        self.energy_j += max(took_ns - worked_ns, 0.0) / 1e9 * self.idle_w * config.gpus

    def waited(self, start_ns: int, end_ns: int, part: str, config: Config) -> None:
        if end_ns == start_ns:
            return
        self._lose(start_ns, end_ns, part, config)
        self.energy_j += (end_ns - start_ns) / 1e9 * self.idle_w * config.gpus

    def _lose(self, start_ns: int, end_ns: int, part: str, config: Config) -> None:
        self.lost_ns[part] += end_ns - start_ns
        last = self.rows[-1] if self.rows else None
        if last is not None and last.state == part and last.end_ns == start_ns and last.steps == 0:
            self.rows[-1] = last._replace(end_ns=end_ns)
            return
        self.rows.append(AccountRow(start_ns, end_ns, part, self.step, 0, 0, 0, config.gpus, config.name))

    def mark(self) -> Mark:
        return Mark(self.step, self.useful_ns, self.lost_ns["degraded"], self.tokens, len(self.rows))

    def back_to(self, mark: Mark) -> None:
        """Steps since the mark are lost: their time counts as work to repeat."""
        self.lost_ns["redo"] += self.useful_ns - mark.useful_ns + self.lost_ns["degraded"] - mark.degraded_ns
        self.useful_ns, self.lost_ns["degraded"] = mark.useful_ns, mark.degraded_ns
        self.tokens, self.step = mark.tokens, mark.step
        for k in range(mark.row, len(self.rows)):
            if self.rows[k].state == TRAIN:
                self.rows[k] = self.rows[k]._replace(state=REDO, useful_ns=0)

    def table(self) -> pa.Table:
        """A row for each stretch of one state; `useful_s` is the planned time of its tokens."""
        whole = [one for row in self.rows for one in stretches(row)]
        columns = list(zip(*whole, strict=True)) or [() for _ in AccountRow._fields]
        start, end, state, step, steps, tokens, useful, gpus, config, *_ = columns
        seconds = [np.array(c, np.int64) / 1e9 for c in (start, end, useful)]
        return pa.table({
            "start_s": seconds[0], "end_s": seconds[1], "state": pa.array(state, pa.string()),
            "step": pa.array(step, pa.int64()), "steps": pa.array(steps, pa.int64()),
            "tokens": pa.array(tokens, pa.int64()), "useful_s": seconds[2], "gpus": pa.array(gpus, pa.int64()),
            "config": pa.array(config, pa.string()),
        })  # fmt: skip


def stretches(row: AccountRow) -> Iterator[AccountRow]:
    """Expands a row of several cycles into a row for each stretch."""
    if not row.stall_ns and row.cycles == 1:
        yield row
        return
    n, each = row.cycles, (row.end_ns - row.start_ns) // row.cycles
    for k in range(n):
        start, step = row.start_ns + k * each, row.step + k * (row.steps // n)
        useful = row.useful_ns * (k + 1) // n - row.useful_ns * k // n
        yield row._replace(
            start_ns=start,
            end_ns=start + each - row.stall_ns,
            step=step,
            steps=row.steps // n,
            tokens=row.tokens // n,
            useful_ns=useful,
        )
        if row.stall_ns:
            yield AccountRow(
                start + each - row.stall_ns,
                start + each,
                "checkpoint",
                step + row.steps // n,
                0,
                0,
                0,
                row.gpus,
                row.config,
            )
