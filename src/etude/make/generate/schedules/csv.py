"""A pipeline schedule as CSV, in the form that PyTorch and torchtitan read and write.

A line is a rank, a cell an action: `2F0` is stage 2, forward, micro-batch 0; B is the whole backward, I and W are its
parts. Empty cells are left out. `(0F5;3B1)OVERLAP_F_B` is a forward and a backward that overlap. Communication is
ignored, since it follows from which rank holds which stage: messages (`0SEND_F1`), and what FSDP does (`0UNSHARD`).
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from etude.base.errors import FormatError, UsageError
from etude.make.generate.schedules.pipeline import Action, PipelineSchedule, Step, build

MAX_BYTES = 64 << 20
_CELL = re.compile(r"(\d{1,6})([FBIW])(\d{1,6})")
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_COMMUNICATION = re.compile(r"\d{1,6}((SEND|RECV)_[FB]\d{1,6}|UNSHARD|RESHARD|REDUCE_GRAD)")
_LETTER = {a.letter: a for a in Action if a}


def read(path: str | Path, *, ranks: int | None = None, micro_batches: int | None = None) -> PipelineSchedule:
    """The schedule in a file. `ranks` and `micro_batches` come from the plan and must match the file."""
    path = Path(path)
    if path.stat().st_size > MAX_BYTES:
        raise FormatError(f"{path.stat().st_size} bytes are too many for a schedule", path=path)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            orders = [_row(line, number, path) for number, line in enumerate(csv.reader(file))]
    except (UnicodeDecodeError, csv.Error) as problem:
        raise FormatError(f"not a CSV file: {problem}", path=path) from None
    while orders and not orders[-1]:  # a line feed at the end
        orders.pop()
    if not orders:
        raise FormatError("it has no actions", path=path)
    for rank, order in enumerate(orders):
        if not order:
            raise FormatError(f"rank {rank} has no actions", path=path, where=f"line {rank + 1}")
    stages = 1 + max(step[1] for order in orders for step in order)
    found = 1 + max(step[2] for order in orders for step in order)
    for what, given, here in (("pipeline ranks", ranks, len(orders)), ("micro-batches", micro_batches, found)):
        if given is not None and given != here:
            raise UsageError(f"the schedule has {here} {what}, the plan {given}", where=str(path))
    held = [tuple(dict.fromkeys(sorted(step[1] for step in order))) for order in orders]
    return build(str(path), stages, found, orders, held)


def _row(cells: list[str], rank: int, path: Path) -> list[Step]:
    order: list[Step] = []
    for column, cell in enumerate(cells):
        text = cell.strip()
        if not text or _COMMUNICATION.fullmatch(text):
            continue
        pair = _PAIR.fullmatch(text)
        parts = [_CELL.fullmatch(part.strip()) for part in (pair.groups() if pair else (text,))]
        for place, part in enumerate(parts):
            if part is None:
                problem = f"`{text[:40]}` is not an action"
                hint = "2F0 is stage 2, forward, micro-batch 0; B, I and W are backwards"
                raise FormatError(problem, path=path, where=f"line {rank + 1}, cell {column + 1}", hint=hint)
            order.append((_LETTER[part[2]], int(part[1]), int(part[3]), bool(pair) and place == 0))
    return order


def text(schedule: PipelineSchedule) -> str:
    """The schedule as CSV, which cannot express updates."""
    if schedule.window:
        raise UsageError("updates by windows cannot be written as CSV", where=f"schedule `{schedule.name}`")
    lines = []
    for rank in range(schedule.ranks):
        words, paired = schedule.order(rank), schedule.paired[schedule.rows(rank)].tolist()
        cells, i = [], 0
        while i < len(words):
            cells.append(f"({words[i]};{words[i + 1]})OVERLAP_F_B" if paired[i] else words[i])
            i += 1 + paired[i]
        lines.append(",".join(cells) + "\n")
    return "".join(lines)
