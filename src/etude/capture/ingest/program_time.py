"""Whose times a recording gets: those of the program, an estimate of them, or those under the profiler.

| times | where from |
|---|---|
| program | the light window of `etude collect`, and the device alone where that was recorded |
| estimated | the recording itself, with a cost of each event that makes a step as long as it is without a profiler |
| estimated, not anchored | the recording itself, with the cost that it shows (`recording_cost`) |
| recorded | as they are in the file: without steps, a device or calls of its driver, or as asked |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.capture.ingest.device_alone import DeviceAlone, as_alone
from etude.capture.ingest.light_cost import CallsOfDevice, fitted, without_cost
from etude.capture.ingest.light_window import LightWindow
from etude.capture.ingest.program_clock import Joined, as_window, in_program_time
from etude.capture.ingest.recording_cost import host_cost
from etude.capture.link.device import DeviceTrace

PROGRAM, ESTIMATED, RECORDED = "program", "estimated", "recorded"
UNSURE: Final = 0.1
"""Part of an estimate by which it may be off where its step was timed on one side of the window alone."""
FASTER, SLOWER = 0.75, 1.6
"""Host time of a program, as a part of what a recording without a known step says: two ends of the range."""
SURELY: Final = 0.1
"""Part of such a step by which it may be off even where the device is busy throughout."""
FOLLOWS: Final = 0.01
"""Part of a step by which calls and activities may differ from those that follow from each other."""


@dataclass(frozen=True, slots=True)
class WantedTimes:
    """Which times are wanted."""

    as_recorded: bool = False
    anchor: bool = True
    """Use the time of a step without a profiler, where it is known."""
    unprofiled_ns: int = 0
    """That time, if it is given; else that of the manifest."""
    estimate: bool = True
    """Estimate them from the recording alone, where nothing says how long a step takes."""

    @property
    def is_usual(self) -> bool:
        """Nothing is asked for that only a recording has."""
        return not self.as_recorded and self.anchor and not self.unprofiled_ns


@dataclass(frozen=True, slots=True)
class Timed:
    """Which times a recording has."""

    kind: str = RECORDED
    anchored: bool = False
    recorded_step_ns: int = 0
    low_ns: int = 0
    high_ns: int = 0
    """Of an estimate: the range of a step."""
    step_ns: int = 0
    """What the range is about, where it is relative: the host is as much faster or slower in whatever is made of it."""
    note: str = ""


USUAL: Final = WantedTimes()
AS_RECORDED: Final = Timed()


def timed(
    device: DeviceTrace, light: Mapping[str, Any], manifest: Mapping[str, Any], wanted: WantedTimes
) -> tuple[DeviceTrace, Timed]:
    """The recording in the time of its program, as far as that is known."""
    if wanted.as_recorded:
        return device, Timed()
    moved, found = _timed(device, light, manifest, wanted)
    if wanted.unprofiled_ns and not found.anchored:
        hint = "it is read for recordings of a GPU that have steps (`ProfilerStep#n`) and calls of its driver"
        raise UsageError("the time of a step without a profiler is not read here", where=device.json.path, hint=hint)
    return moved, found


def _timed(
    device: DeviceTrace, light: Mapping[str, Any], manifest: Mapping[str, Any], wanted: WantedTimes
) -> tuple[DeviceTrace, Timed]:
    numbers = _numbers(manifest)
    sides = _sides(manifest) if wanted.anchor and not wanted.unprofiled_ns else []
    step_ns = wanted.unprofiled_ns or _unprofiled(manifest, wanted)
    window = LightWindow.of(light)
    if window is not None and manifest.get("world_size") == 1:
        window = replace(window, alone=True)
    if window is not None:
        alone = DeviceAlone.of(light) if window.on_device and window.alone else None
        by_device = _by_device(device, window, alone, numbers, step_ns)
        if by_device is not None:
            moved, joined = by_device
            return moved, Timed(PROGRAM, bool(step_ns), _full_step(manifest), note=_told(joined))
        pace_ns = step_ns or (alone.typical_ns() if alone else 0)
        eased = _without_profiler(window, len(numbers) or 1, pace_ns)
        moved, joined = in_program_time(device, eased, numbers)
        if not joined.done and eased.chosen:  # those did something else: any others?
            eased = _without_profiler(replace(window, alone=False), len(numbers) or 1, pace_ns)
            moved, joined = in_program_time(device, eased, numbers)
        if joined.done:
            return moved, Timed(PROGRAM, bool(step_ns and window.on_device), _full_step(manifest), note=_told(joined))
        return device, Timed(note=f"times are as recorded, because {joined.why_not}")
    full = as_window(device, numbers)
    if full is None or not (step_ns or (wanted.estimate and _alone(device, manifest))):
        return device, Timed()
    if not step_ns:
        return _by_itself(device, full[0], numbers)
    eased = fitted(full[0], step_ns, full[1])[0]
    moved, joined = in_program_time(device, eased, numbers)
    if not joined.done:
        return device, Timed(note=f"times are as recorded, because {joined.why_not}")
    low, high = (min(sides), max(sides)) if len(sides) > 1 else (step_ns * (1 - UNSURE), step_ns * (1 + UNSURE))
    if moved.recorded is not None:  # nothing was measured lightly
        moved = replace(moved, recorded=replace(moved.recorded, light=np.zeros(len(moved), bool)))
    return moved, Timed(ESTIMATED, True, round(full[0].step_ns), round(low), round(max(high, eased.step_ns)))


def _by_device(
    device: DeviceTrace, window: LightWindow, alone: DeviceAlone | None, numbers: Sequence[int], step_ns: int
) -> tuple[DeviceTrace, Joined] | None:
    """The recording with the times of the device alone; None where there are none, or they are of something else."""
    if alone is None:
        return None
    eased = _without_profiler(window, len(numbers) or 1, 0)
    found = as_alone(eased, alone, step_ns)
    if found is None:
        return None
    moved, joined = in_program_time(device, found, numbers)
    return (moved, joined) if joined.done else None


def _without_profiler(window: LightWindow, steps: int, step_ns: float) -> LightWindow:
    """The window without what its profiler added to each call: so much that a step takes `step_ns`, if that is known,
    or what was measured, if that does not contradict it: where the device sets the pace, a step says nothing of the
    host. Of a rank without others, `steps` of them that take as long as steps usually do."""
    weights = window.weights() if window.on_device else None
    eased = without_cost(window, window.profiler_ns, weights)
    if window.alone:
        chosen = eased.run(steps, step_ns if step_ns and window.on_device else eased.typical_ns())
        window, eased = replace(window, chosen=chosen), replace(eased, chosen=chosen)
    if not (step_ns and window.on_device):
        return eased
    found = fitted(window, step_ns, weights)[0]
    return eased if abs(eased.step_ns / found.step_ns - 1) <= FOLLOWS else found


def _by_itself(device: DeviceTrace, full: LightWindow, numbers: Sequence[int]) -> tuple[DeviceTrace, Timed]:
    """By what recording cost as the recording shows it."""
    cost = host_cost(device)
    if cost is None:
        return device, Timed()
    launched = CallsOfDevice(full)
    same = launched.without(0.0)
    if abs(same.step_ns / full.step_ns - 1) > FOLLOWS:
        return device, Timed(note="times are as recorded, because activities do not follow from the driver's calls")
    call = launched.before(cost.at_ns + device.base_ns)
    eased, fast, slow = (launched.without(0.0, after=(call, cost.cost_ns(by))) for by in (1.0, FASTER, SLOWER))
    moved, joined = in_program_time(device, eased, numbers)
    if not joined.done:
        return device, Timed(note=f"times are as recorded, because {joined.why_not}")
    step_ns, recorded = eased.device_step_ns, full.device_step_ns
    low = min(fast.device_step_ns, (1 - SURELY) * step_ns)
    high = max(slow.device_step_ns, (1 + SURELY) * step_ns) + (full.busy_ns - eased.busy_ns) / len(full.steps_ns)
    high = min(high, max(recorded, step_ns)) if cost.observed else max(recorded, step_ns)  # it may cost next to nothing
    return moved, Timed(ESTIMATED, False, round(recorded), round(low), round(high), round(step_ns))


def _alone(device: DeviceTrace, manifest: Mapping[str, Any]) -> bool:
    """Whether no other rank is waited for: what a faster host would do to the others is not in the recording."""
    worlds = (device.distributed.get("world_size"), manifest.get("world_size"))
    return all(world in (None, 1) for world in worlds)


def _told(joined: Joined) -> str:
    if joined.paired == joined.of:
        return ""
    return (
        f"{joined.paired:,} of {joined.of:,} calls are the same in the light window; the others are placed between them"
    )


def _numbers(manifest: Mapping[str, Any]) -> list[int]:
    steps = manifest.get("steps")
    found = steps.get("numbers") if isinstance(steps, Mapping) else None
    return [one for one in found if type(one) is int] if isinstance(found, list) else []


def _of_manifest(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    steps = manifest.get("steps")
    found = steps.get("unprofiled") if isinstance(steps, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _unprofiled(manifest: Mapping[str, Any], wanted: WantedTimes) -> int:
    took = _of_manifest(manifest).get("step_ns")
    return took if wanted.anchor and isinstance(took, int) and took > 0 else 0


def _sides(manifest: Mapping[str, Any]) -> list[int]:
    """A step before the windows and after them."""
    told = _of_manifest(manifest)
    sides = [told.get(name) for name in ("before", "after")]
    return [one["step_ns"] for one in sides if isinstance(one, Mapping) and isinstance(one.get("step_ns"), int)]


def _full_step(manifest: Mapping[str, Any]) -> int:
    windows = manifest.get("windows")
    for one in windows if isinstance(windows, list) else ():
        if isinstance(one, Mapping) and one.get("kind") == "full" and isinstance(one.get("step_ns"), int):
            return int(one["step_ns"])
    return 0
