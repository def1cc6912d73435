"""What is asked of power and energy, whatever they are of, and what a reader sees of them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from etude.base.figures import figure, part, switch, text
from etude.base.outputs import OutputPlace, Printed
from etude.base.parameters import given_in, is_given, naming, only_one, replaces
from etude.base.talk import say
from etude.steps.asked.simulation import OnSystem

if TYPE_CHECKING:
    from etude.analyse.energy import PowerCurve
    from etude.machine.system import System
    from etude.steps.energy import Clocked, PowerFound, PowerTerms

KERNELS = ("kernel", "units")


@dataclass(frozen=True, kw_only=True)
class PowerInput:
    """Parameters of power and energy, whatever they are of."""

    clock: str = text("clock of the devices: `1200MHz`, or `0.8` of the nominal one", like="0.8", panel="Power")
    cap_w: float | None = figure(
        "power", "power cap of a device, `500W`: the highest clock that keeps to it is taken", None, panel="Power"
    )
    smooth: str = text("`floor:0.8` of the peak, `battery:2MJ`, `stagger:4` jobs", like="stagger:4", panel="Power")
    region: str = text("where it runs, for carbon and price: `sweden`, `usa`, ...", like="sweden", panel="Place")
    regions: str | None = figure(
        "path",
        "CSV file of regions: region, impact, price, pue",
        None,
        needs="region",
        like="regions.csv",
        panel="Place",
    )
    timeline: str | None = figure("out", "Parquet file to write: time_ns, watts of all devices", None, panel="Output")
    every_ns: int | None = figure(
        "time",
        "length of the windows of the timeline, `1ms`; default: a row for each change",
        None,
        needs="timeline",
        panel="Output",
    )
    force: bool = switch("replace an existing timeline", needs="timeline", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class LongInput:
    """Parameters of a run that is repeated."""

    repeat: int = figure("count", "repeat the step, or the run, this many times", 1, panel="Power")
    gaps: str = text(
        "`checkpoint=every:60s,for:5s;failure=mtbf:3h,for:10min`: the devices idle then",
        like="failure=mtbf:3h,for:10min",
        panel="Power",
    )
    seed: int = figure("count", "seed of the failures", 0, needs="gaps", panel="Power")


@dataclass(frozen=True, slots=True)
class PowerInputs:
    """What is asked of the power, and where its curve goes."""

    terms: "PowerTerms"
    timeline: OutputPlace | None
    every_ns: int | None

    @classmethod
    def of(cls, asked: Any, repeat: int = 1, gaps: Any = None) -> "PowerInputs":
        from etude.analyse.smoothing import Smoothing
        from etude.machine.regions import open_region
        from etude.steps.energy import PowerTerms

        if only_one(asked, "clock", "cap_w"):
            for name in (one for one in KERNELS if is_given(asked, one)):
                replaces(asked, name, "clock", "cap")
        with naming(asked, "smooth"):
            smoothing = Smoothing.parse(asked.smooth)
        with naming(asked, "region", "regions"):
            region = open_region(asked.region, asked.regions) if asked.region else None
        terms = PowerTerms(
            clock=asked.clock, cap_w=asked.cap_w, smoothing=smoothing, region=region, repeat=repeat, gaps=gaps
        )
        place = OutputPlace.at(asked.timeline, asked.force)
        return cls(terms, place, None if asked.every_ns is None else round(asked.every_ns))

    @classmethod
    def repeated(cls, asked: Any) -> "PowerInputs":
        """As `of`, for what can be repeated."""
        from etude.analyse.gaps import Gaps

        gaps = Gaps.parse(asked.gaps, seed=asked.seed) if asked.gaps else None
        return cls.of(asked, asked.repeat, gaps)

    def found(self, run: "Clocked", kind: str = "train_step") -> dict[str, Any]:
        """The figures, with the ranges of runs of this kind; the curve is written."""
        from etude.cost.estimates import columns
        from etude.steps.estimates import energy_estimates

        found: PowerFound = self.terms.of(run)
        if self.timeline is not None:
            _write(found.curve, self.timeline, self.every_ns)
        for note in found.notes:
            say(f"note: {note}")
        return found.figures | columns(energy_estimates(found.figures, kind, run.device.name))


def _write(curve: "PowerCurve", place: OutputPlace, every_ns: int | None) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from etude.base.files import writing

    shown = curve if every_ns is None else curve.sampled(every_ns)
    watts = np.append(shown.watts, shown.watts[-1:])  # the last row is the end
    with writing(place.path, force=place.force) as file:
        pq.write_table(pa.table({"time_ns": shown.time_ns[: len(watts)], "watts": watts}), file)
    say(f"wrote {place.path}: {len(watts):,} rows")


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Kernels and units that are chosen, by name."""

    kernels: tuple[str, ...]
    units: str

    @classmethod
    def of(cls, asked: Any) -> "KernelChoice":
        from etude.cost.choice import Menu

        given = given_in(asked.settings)
        found = cls(tuple(given.get("kernel", ())), given.get("units", ""))
        with naming(asked, *KERNELS):
            Menu.of(found.kernels, found.units)
        return found


def power_system(asked: OnSystem, power: PowerInputs) -> "System":
    """The system; a clock that its devices do not have is refused."""
    from etude.machine import open_system

    found = open_system(asked.system)
    with naming(asked, "system", "clock", "cap"):
        power.terms.check(found)
    return found


def energy_shown(figures: dict[str, Any]) -> dict[str, Any]:
    """The most important figures, formatted."""
    from etude.base.units import format_time

    total = figures["energy_j"] or 1.0
    rows = {
        "energy": f"{figures['energy_j']:.4g} J, {figures['kwh']:.4g} kWh of the site",
        "power": f"{figures['mean_w']:.4g} W on average, {figures['peak_w']:.4g} W at most",
        "per device": f"{figures['device_mean_w']:.4g} W on average",
        "time": format_time(figures["time_ns"]),
        "consumed by": ", ".join(
            f"{name} {joules / total:.0%}" for name, joules in list(figures["by_class"].items())[:5]
        ),
        "swing": f"{figures['swing_w']:.4g} W",
        "range": figures["basis"]["energy_j"]["text"],
    }
    if figures["low"]["energy_j"] is not None:
        rows["range"] = f"{figures['low']['energy_j']:.4g} to {figures['high']['energy_j']:.4g} J, {rows['range']}"
    names = {"per_step_j": "J per step", "per_token_j": "J per token", "per_request_j": "J per request"}
    names |= {"carbon_g": "g of CO2", "cost": "electricity cost in dollars", "device_cost": "device cost in dollars"}
    rows |= {"available": _available(figures)} if figures["available"] < 1 else {}
    names |= {name: name for name in ("checkpoints", "failures") if figures[name]}
    names |= {"clock": "clock relative to nominal", "cap_met": "within the cap"}
    return rows | {shown: figures[key] for key, shown in names.items() if figures.get(key) is not None}


def _available(figures: dict[str, Any]) -> str:
    from etude.base.units import format_time

    if not figures["expected_time_ns"]:
        return "never all at the same time"
    return (
        f"{figures['available']:.1%} of the hours: {format_time(figures['expected_time_ns'])} with those they are not"
    )
