"""The power and energy of a run as one asks for it: at a clock or under a cap, smoothed, repeated, in a region."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from etude.analyse.energy import Energy, PowerCurve
from etude.analyse.gaps import Gaps, long_run
from etude.analyse.smoothing import Smoothing
from etude.base.errors import UsageError
from etude.machine.regions import Region
from etude.machine.system import System
from etude.steps.energy.clock import ratio_of, under_cap
from etude.steps.energy.clocked import Clocked
from etude.steps.energy.figures import energy_figures


@dataclass(frozen=True, slots=True)
class PowerFound:
    figures: dict[str, Any]
    curve: PowerCurve
    """Of all devices."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerTerms:
    """What is asked of a run's power and energy."""

    clock: str = ""
    """`1200MHz`, or a fraction of the nominal one."""
    cap_w: float | None = None
    """Of a device; it chooses the clock."""
    smoothing: Smoothing | None = None
    region: Region | None = None
    repeat: int = 1
    gaps: Gaps | None = None

    @property
    def is_slowed(self) -> bool:
        return bool(self.clock) or self.cap_w is not None

    def check(self, system: System) -> None:
        """Refuses a clock that the devices of the system do not have, before they are simulated."""
        if self.is_slowed and system.devices:
            raise UsageError("--clock and --cap need a system with one kind of device, and this one has several")
        if self.clock:
            ratio_of(self.clock, system.device)

    def of(self, run: Clocked) -> PowerFound:
        if run.mix is not None:
            self.check(run.mix)
        found, extra, notes = self._at_clock(run)
        counts, happened = dict(run.counts), {"repeat": 1, "checkpoints": 0, "failures": 0, "lost_ns": 0}
        if self.repeat > 1 or self.gaps is not None:
            long = long_run(found, self.gaps or Gaps(), repeat=self.repeat)
            found = replace(found, curve=long.curve, by_class=long.by_class)
            counts = {name: count * long.repeat for name, count in counts.items()}
            happened = {name: getattr(long, name) for name in happened}
        curve = self.smoothing.of(found.curve) if self.smoothing else found.curve
        figures = energy_figures(found, curve=curve, region=self.region, kinds=run.kinds(found.ranks), **counts)
        return PowerFound(figures | happened | extra, curve, (*notes, *figures["assumed"]))

    def _at_clock(self, run: Clocked) -> tuple[Energy, dict[str, Any], list[str]]:
        """The energy, figures of the clock where one is asked for, and notes."""
        if not self.is_slowed:
            return run.at(1.0), {}, []
        device, notes = run.device, list[str]()
        known = device.energy is not None and device.energy.measured_clocks
        if self.cap_w is not None:
            capped = under_cap(run.at, self.cap_w, device)
            found, extra = capped.energy, {"clock": capped.ratio, "cap_met": capped.met, "validated": known}
            if not capped.met:
                notes.append(f"at the lowest clock a device still draws {found.highest_w:.0f} W, more than the cap")
        else:
            ratio = ratio_of(self.clock, device)
            found, extra = run.at(ratio), {"clock": ratio, "validated": known}
        if not known:
            notes.append(f"no measurement of `{device.name}` at another clock or under a cap was available")
        return found, extra, notes
