"""Measures the points of a plan on this machine, or writes the plan for another one."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec

from etude.base.errors import UsageError
from etude.base.files import writing
from etude.base.outputs import OutputPlace
from etude.base.talk import progress, say
from etude.cost.opdb import add_rows, worker
from etude.cost.opdb.profiles import numbers_of
from etude.machine import device_names
from etude.steps.operators.opened import open_ops

FLUSH: Final = 64
"""Points after which the file is written."""


def has_host(db: Path) -> bool:
    return db.exists() and open_ops(db).host_ns() is not None


def write_plan(plan: dict[str, Any], place: OutputPlace) -> dict[str, Any]:
    path = place.path
    script = path.with_name(f"{path.stem}_worker.py")
    with writing(script, force=True) as temporary:
        temporary.write_text(files("etude.cost.opdb").joinpath("worker.py").read_text("utf-8"), "utf-8")
    with writing(path, force=place.force) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1))
    say(f"wrote {path} with {len(plan['points']):,} points, and {script}")
    say(f"there run python {script.name} {path.name} -o points.csv; then here: etude ops add points.csv --db FILE")
    return {"plan": str(path), "points": len(plan["points"])}


def measure(plan: dict[str, Any], db: Path, budget_s: float) -> dict[str, Any]:
    """Measures the points of a plan and writes them to the database. After an interruption, the points measured so far
    are still written."""
    _check_machine(plan["device"])
    waiting: list[dict[str, Any]] = []
    count = left_out = 0
    try:
        with progress("measuring", len(plan["points"])) as advance:
            for point, times in worker.rows_of(plan, budget_s=budget_s, done=set()):
                waiting += worker.written(plan, point, times)
                count, left_out = count + bool(times), left_out + (not times)
                advance(1, point["op"])
                if count % FLUSH == 0 and waiting:
                    add_rows(db, numbers_of(waiting))
                    waiting = []
    except KeyboardInterrupt:
        say("interrupted: measured points are kept")
    if waiting:
        add_rows(db, numbers_of(waiting))
    left = len(plan["points"]) - count - left_out
    say(f"{db}: {count:,} points measured, {left_out:,} not measurable, {left:,} left")
    return {"measured": count, "left_out": left_out, "left": left}


def _check_machine(device: str) -> None:
    """Raises UsageError without PyTorch, or if a device of the catalogue is to be measured on another one."""
    try:
        import torch
    except ImportError:
        raise UsageError(
            "measuring needs PyTorch", hint="pip install 'etude[torch]', or --plan-only plan.json"
        ) from None
    here = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    bare = "".join(c for c in here.lower() if c.isalnum())
    if device in device_names() and device.replace("-", "") not in bare:
        hint = "--plan-only plan.json for that machine, or --device with a name for this one"
        raise UsageError(f"points of `{device}` cannot be measured here: this machine has {here}", hint=hint)
