"""Requests for images and videos: a file, or a mix of sizes drawn at a rate.

arrival,height,width,frames,steps,deadline
0.0,1024,1024,1,28,
0.4,480,832,81,50,120
"""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Final

import numpy as np

from etude.base.errors import FormatError, UsageError
from etude.base.grammar import line
from etude.kernels.arrays import I64
from etude.world.serve.request_files import column_of, rows_of, time_ns_of
from etude.world.serve.requests import NO_DEADLINE
from etude.world.serve.workloads import arrivals

MIX: Final = "mix:"
HINT: Final = "mix:1024x1024@28=0.7,480x832x81@50=0.3: height x width x frames @ steps = part"
LEAST: Final = {"height": 16, "width": 16, "frames": 1, "steps": 1}
MOST: Final = 1 << 16
ARRIVAL: Final = ("arrival", "arrival_s", "arrived_at", "timestamp")
STEPS: Final = ("steps", "inference_steps", "num_inference_steps")


@dataclass(frozen=True, slots=True, eq=False)
class ImageRequests:
    """In order of arrival. `size` is a row of `sizes`: frames, height, width."""

    arrival_ns: I64
    size: I64
    steps: I64
    sizes: I64
    deadline_ns: I64
    """After the arrival."""

    def __len__(self) -> int:
        return len(self.arrival_ns)


def images_of(arrival_ns: Any, shapes: Any, steps: Any, deadline_ns: Any = None) -> ImageRequests:
    """`shapes` are (frames, height, width) of each."""
    arrival = np.asarray(arrival_ns, np.int64)
    if not len(arrival):
        raise UsageError("there are no requests")
    sizes, size = np.unique(np.asarray(shapes, np.int64).reshape(len(arrival), 3), axis=0, return_inverse=True)
    order = np.argsort(arrival, kind="stable")
    until = np.full(len(arrival), NO_DEADLINE) if deadline_ns is None else np.asarray(deadline_ns, np.int64)
    return ImageRequests(
        arrival[order] - arrival.min(),
        size.reshape(-1).astype(np.int64)[order],
        np.asarray(steps, np.int64)[order],
        sizes,
        until[order],
    )


def image_stream(path: str | PathLike[str], *, rate_per_s: float = 0.0, count: int = 100, first: int = 0,
                 cv: float = 1.0, seed: int = 0) -> ImageRequests:  # fmt: skip
    """From a file, with gaps scaled to the rate if one is given; or from `mix:`, `count` requests at the rate."""
    text = fspath(path)
    if text.startswith(MIX):
        return _mixed(text, rate_per_s, count, cv, seed)
    rows = rows_of(text)[: first or None]
    if not rows:
        raise FormatError("has no requests", path=text)
    names = {str(name).strip().lower().replace(" ", "_"): name for name in rows[0]}
    arrival, steps, deadline = column_of(names, ARRIVAL), column_of(names, STEPS), names.get("deadline")
    if steps is None or "height" not in names or "width" not in names:
        raise FormatError(
            "does not contain requests for images", path=text, hint="arrival, height, width, frames, steps"
        )
    found = []
    for number, row in enumerate(rows):
        where = f"request {number}"
        try:
            at = time_ns_of(row[arrival], 1e9) if arrival else 0
            sides = [int(row[names[name]]) if name in names else 1 for name in ("frames", "height", "width")]
            until = row.get(deadline) if deadline else None
            late = NO_DEADLINE if until in (None, "") else time_ns_of(until, 1e9)
            found.append((at, *sides, int(row[steps]), late))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise FormatError("does not have the numbers of a request", path=text, where=where) from None
        _check(dict(zip(("frames", "height", "width", "steps"), found[-1][1:], strict=False)), text, where)
        if number and at < found[-2][0]:
            raise FormatError("arrives before the previous one", path=text, where=where)
    columns = np.array(found, np.int64)
    if rate_per_s and len(columns) > 1 and columns[-1, 0] > columns[0, 0]:
        span = (len(columns) - 1) / rate_per_s * 1e9
        columns[:, 0] = np.rint((columns[:, 0] - columns[0, 0]) * (span / (columns[-1, 0] - columns[0, 0])))
    return images_of(columns[:, 0], columns[:, 1:4], columns[:, 4], columns[:, 5])


def _check(given: dict[str, int], path: str, where: str) -> None:
    for name, value in given.items():
        if not LEAST[name] <= value <= MOST:
            raise FormatError(f"{name} is {value}", path=path, where=where)


def _mixed(text: str, rate_per_s: float, count: int, cv: float, seed: int) -> ImageRequests:
    kinds, parts = [], []
    for word in line(text, "--requests", HINT).part(len(MIX)).split(","):
        shape, rest = word.cut("@")
        sides = shape.split("x")
        if rest is None or len(sides) not in (2, 3):
            raise word.wrong(f"`{word.text}` is not a size, `@` and steps")
        steps, part = rest.cut("=")
        numbers = [side.count() for side in sides]
        kinds.append((numbers[2] if len(sides) == 3 else 1, numbers[0], numbers[1], steps.count()))
        parts.append(float(part.figure("number")) if part is not None else 1.0)
        _check(dict(zip(("frames", "height", "width", "steps"), kinds[-1], strict=True)), "--requests", word.text)
    if not rate_per_s:
        raise UsageError("a mix needs a rate", hint="--rate 0.5")
    random = np.random.default_rng(seed)
    arrival = arrivals(rate_per_s, count, cv, "", random)
    drawn = np.array(kinds)[random.choice(len(kinds), count, p=np.array(parts) / sum(parts))]
    return images_of(arrival, drawn[:, :3], drawn[:, 3])
