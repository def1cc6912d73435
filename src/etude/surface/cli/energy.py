"""Energy of a run, of a model that is predicted, or of measured rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import figure, part
from etude.base.outputs import Place, Printed
from etude.base.parameters import given_in, is_given, naming, only_one, replaces, spelled
from etude.base.talk import say
from etude.run.simulate.settings import SimulationSettings
from etude.steps.asked.plans import ModelOrConfig, PlanInput, model_asked, plan_asked
from etude.steps.asked.runs import RanOnInput, RunInput, RunSource, grown, no_times
from etude.steps.asked.simulation import PANEL, Checked, OnSystem
from etude.surface.cli import energy_rows
from etude.surface.cli.arguments import values
from etude.surface.cli.build import command_of
from etude.surface.cli.serving import ServingInput, ServingSource
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.analyse.energy import PowerCurve
    from etude.cost.stacks import Stack
    from etude.machine.system import Device, System
    from etude.make.generate import Plan
    from etude.make.generate.model import Model
    from etude.model.job import Job
    from etude.model.run import Run
    from etude.steps.energy import Clocked, PowerFound, PowerTerms

KERNELS = ("kernel", "units")


@dataclass(frozen=True, kw_only=True)
class PowerInput:
    """Parameters of power and energy, whatever they are of."""

    clock: str = figure(
        "text", "clock of the devices: `1200MHz`, or `0.8` of the nominal one", "", like="0.8", panel="Power"
    )
    cap_w: float | None = figure(
        "power", "power cap of a device, `500W`: the highest clock that keeps to it is taken", None, panel="Power"
    )
    smooth: str = figure(
        "text", "`floor:0.8` of the peak, `battery:2MJ`, `stagger:4` jobs", "", like="stagger:4", panel="Power"
    )
    region: str = figure(
        "text", "where it runs, for carbon and price: `sweden`, `usa`, ...", "", like="sweden", panel="Place"
    )
    regions: str | None = figure(
        "path", "CSV file of regions: region, impact, price, pue", None, needs="region", like="regions.csv",
        panel="Place",
    )  # fmt: skip
    timeline: str | None = figure("out", "Parquet file to write: time_ns, watts of all devices", None, panel="Output")
    every_ns: int | None = figure(
        "time", "length of the windows of the timeline, `1ms`; default: a row for each change", None,
        needs="timeline", panel="Output",
    )  # fmt: skip
    force: bool = figure("switch", "replace an existing timeline", False, needs="timeline", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class LongInput:
    """Parameters of a run that is repeated."""

    repeat: int = figure("count", "repeat the step, or the run, this many times", 1, panel="Power")
    gaps: str = figure(
        "text", "`checkpoint=every:60s,for:5s;failure=mtbf:3h,for:10min`: the devices idle then", "",
        like="failure=mtbf:3h,for:10min", panel="Power",
    )  # fmt: skip
    seed: int = figure("count", "seed of the failures", 0, zero=True, needs="gaps", panel="Power")


@dataclass(frozen=True, kw_only=True)
class Energy(RunInput, RanOnInput, LongInput, PowerInput):
    """Power over time and energy of a run, or of a predicted model: J, kWh, carbon, price

    etude energy run/ --ran-on h200
    etude energy job/ --system dgx-h200 --clock 0.8
    etude energy predict llama3-8b --gpus 64 --zero 3 --system dgx-h100 --region sweden
    etude energy serve qwen3-8b --prefill 2048 --decode 256 --batch 16 --system dgx-h200 --clock 1200MHz
    etude energy rows measured.csv

    A job without times, or at another clock, is simulated on the system; else the system says only which devices a
    run had. `--clock` and `--cap` were compared with measurements of an H200; other devices were not measured, and
    the output says so."""

    system: str = figure(
        "text", "simulate there what has no times, or with --clock or --cap; else the hardware of the run: a name of "
        "`etude systems`, or a file", "", names=("-s",), like="dgx-h100",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EnergyPredict(ModelOrConfig, PlanInput, OnSystem, Checked, LongInput, PowerInput):
    """Power over time and energy of a training step that is predicted

    etude energy predict llama3-8b --gpus 64 --zero 3 --system dgx-h100 --region sweden
    etude energy predict llama3-70b --gpus 512 --tp 8 --pp 4 --system dgx-h100 --smooth floor:0.8 --timeline p.parquet
    etude energy predict llama3-70b --gpus 512 --tp 8 --pp 4 --system dgx-h100 --repeat 500 \\
        --gaps "checkpoint=every:5min,for:20s"
    etude energy predict llama3-8b --gpus 16 --cp 2 --seq 8192 --zero 1 --system dgx-h100 --cap 500W
    etude energy predict qwen3-30b-a3b --gpus 64 --ep 16 --zero 1 --global-batch 256 --system dgx-h100
    etude energy predict llama3-8b --gpus 8 --zero 3 --lengths 512:0.6,2048:0.4 --system dgx-h100
    etude energy predict --hf config.json --gpus 16 --host 5us --system dgx-h100

    `--clock` and `--cap` were compared with measurements of an H200; other devices were not measured, and the output
    says so."""

    stack: str = figure(
        "text", "software stack: a name that `etude stacks` lists, or a YAML file", "", like="nemo", panel="Machine"
    )
    settings: SimulationSettings = part(SimulationSettings, PANEL, only=KERNELS)


@dataclass(frozen=True, kw_only=True)
class EnergyServe(ServingInput, OnSystem, Checked, PowerInput):
    """Power over time and energy of a model that serves

    etude energy serve qwen3-8b --prefill 2048 --decode 256 --batch 16 --system dgx-h200 --clock 1200MHz
    etude energy serve llama3.2-3b --prefill 2048 --decode 64 --system xdna2 --kernel product:w4a16:g128
    etude energy serve llama3-70b --tp 8 --requests requests.csv --system dgx-h100 --chunked --token-budget 2048 \\
        --kv-memory 20GB --region sweden
    etude energy serve qwen3-8b --tp 2 --draft llama3.2-1b --speculate 4 --accept 0.7 --decode 255 --system dgx-h100
    etude energy serve qwen3-30b-a3b --gpus 4 --tp 2 --ep 2 --system dgx-h100
    etude energy serve --hf config.json --tp 2 --system dgx-h100

    `--clock` and `--cap` were compared with measurements of an H200; other devices were not measured, and the output
    says so."""

    settings: SimulationSettings = part(SimulationSettings, PANEL, only=KERNELS)


@dataclass(frozen=True, slots=True)
class PowerInputs:
    """What is asked of the power, and where its curve goes."""

    terms: "PowerTerms"
    timeline: Place | None
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
        place = Place.at(asked.timeline, asked.force)
        return cls(terms, place, None if asked.every_ns is None else round(asked.every_ns))

    @classmethod
    def repeated(cls, asked: Any) -> "PowerInputs":
        """As `of`, for what can be repeated."""
        from etude.analyse.gaps import Gaps

        gaps = Gaps.parse(asked.gaps, seed=asked.seed) if asked.gaps else None
        return cls.of(asked, asked.repeat, gaps)

    def found(self, run: "Clocked") -> dict[str, Any]:
        """The figures; the curve is written."""
        found: PowerFound = self.terms.of(run)
        if self.timeline is not None:
            _write(found.curve, self.timeline, self.every_ns)
        for note in found.notes:
            say(f"note: {note}")
        return found.figures


def _write(curve: "PowerCurve", place: Place, every_ns: int | None) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from etude.base.files import writing

    shown = curve if every_ns is None else curve.sampled(every_ns)
    watts = np.append(shown.watts, shown.watts[-1:])  # the last row is the end
    with writing(place.path, force=place.force) as file:
        pq.write_table(pa.table({"time_ns": shown.time_ns[: len(watts)], "watts": watts}), file)
    say(f"wrote {place.path}: {len(watts):,} rows")


# -- a run -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EnergyInputs:
    source: RunSource
    system: str
    device: "Device | None"
    """The device of the run, where one is named."""
    power: PowerInputs


def inputs(asked: Energy) -> EnergyInputs:
    from etude.machine import device_names, open_device

    on, is_device = asked.ran_on, asked.ran_on in device_names()
    if on and not is_device and asked.system:  # a system, which may have devices of several kinds
        raise UsageError(f"{spelled(asked, 'ran_on')} and {spelled(asked, 'system')} both name a system",
                         hint="give one of them")  # fmt: skip
    groups, timing = (None if path is None else Path(path) for path in (asked.groups, asked.timing))
    source = RunSource(Path(asked.path), timing=timing, groups=groups, workers=asked.workers)
    system = asked.system or ("" if is_device else on)
    return EnergyInputs(source, system, open_device(on) if is_device else None, PowerInputs.repeated(asked))


def run(given: EnergyInputs) -> dict[str, Any]:
    job, found = given.source.find()
    return given.power.found(_clocked(given, job, found))


def _clocked(given: EnergyInputs, job: "Job", recorded: "Run | None") -> "Clocked":
    """A run as recorded. Without times, or at another clock, as simulated on the system."""
    from etude.machine import open_system
    from etude.steps.energy import Clocked
    from etude.tell.report import device_of

    path, again = given.source.path, given.power.terms.is_slowed
    run = None if again else recorded
    if given.device is not None and given.system and run is not None:
        raise UsageError("--system is not read: the run has times, and --ran-on names its device", where=str(path))
    card = recorded.card if recorded is not None else None
    name = given.system or (card.hardware.system if card is not None else "")
    needs_system = bool(name) and (run is None or given.device is None)
    on = grown(open_system(name), name, job.world_size) if needs_system else None
    if recorded is None and on is None:
        raise no_times(path)
    device = given.device or (on.device if on is not None else device_of(job))
    if device is None:
        raise UsageError("the devices of the run are not known", where=str(path), hint="--ran-on h200")
    mix = on if on is not None and given.device is None and on.devices else None
    if run is not None:
        return Clocked.of_recording(run, device, mix)
    if on is None:
        raise UsageError("another clock needs a system to simulate on", hint="--system dgx-h200")
    say(f"note: times are from a simulation on {on.name}")
    return Clocked.of_job(job, on, device, mix)


# -- a model -----------------------------------------------------------------------------------------------------------


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyPredictInputs:
    model: "Model"
    plan: "Plan"
    system: "System"
    stack: "Stack"
    choice: KernelChoice
    check: bool
    power: PowerInputs


def predict_inputs(asked: EnergyPredict) -> EnergyPredictInputs:
    from etude.cost.stacks import open_stack

    (model, said), power = model_asked(asked), PowerInputs.repeated(asked)
    return EnergyPredictInputs(
        model=model, plan=plan_asked(asked, model, said), system=_system(asked, power), power=power,
        stack=open_stack(asked.stack or "default"), choice=KernelChoice.of(asked), check=asked.memory_check,
    )  # fmt: skip


def run_predict(given: EnergyPredictInputs) -> dict[str, Any]:
    from etude.cost.choice import Menu
    from etude.steps import predict
    from etude.steps.energy import Clocked

    kernels, units = given.choice.kernels, given.choice.units
    found = predict(
        given.model, given.plan, given.system, stack=given.stack, check=given.check, kernels=kernels, units=units
    )
    return given.power.found(Clocked.of_step(found, Menu.of(kernels, units)))


@dataclass(frozen=True, slots=True)
class EnergyServeInputs:
    source: ServingSource
    system: "System"
    choice: KernelChoice
    check: bool
    power: PowerInputs


def serve_inputs(asked: EnergyServe) -> EnergyServeInputs:
    power = PowerInputs.of(asked)
    return EnergyServeInputs(
        ServingSource.of(asked), _system(asked, power), KernelChoice.of(asked), asked.memory_check, power
    )


def run_serve(given: EnergyServeInputs) -> dict[str, Any]:
    from etude.cost.choice import Menu
    from etude.steps.energy import Clocked

    kernels, units = given.choice.kernels, given.choice.units
    job = given.source.generate(given.system, check=given.check, weights=Menu.of(kernels, units).weights)
    return given.power.found(Clocked.of_serving(job, given.system, kernels, units))


def _system(asked: OnSystem, power: PowerInputs) -> "System":
    """The system; a clock that its devices do not have is refused."""
    from etude.machine import open_system

    found = open_system(asked.system)
    with naming(asked, "system", "clock", "cap"):
        power.terms.check(found)
    return found


# -- words -------------------------------------------------------------------------------------------------------------


OF_RUNS = ("--ran-on", "--device", "--timing")


def meant(args: list[str]) -> tuple[str, list[str]]:
    """`energy MODEL` is `energy predict MODEL`, or `energy serve MODEL` with `--serve`; `--rows FILE` is a verb, too.
    What is neither given nor a model is a run."""
    before = args[: args.index("--") if "--" in args else None]
    said = {arg.partition("=")[0] for arg in before}
    if "--rows" in said:
        return "energy rows", args
    if "--serve" in said:
        at = args.index("--serve")
        return "energy serve", args[:at] + args[at + 1 :]
    params = [p for verb in VERBS[:2] for p in command_of(verb).params]
    words = [args[at] for at, option in values(params, args) if not option]
    is_model = bool(words) and not said & {*OF_RUNS} and not any(map(_is_run, words))
    return ("energy predict" if is_model or "--hf" in said else ""), args


def _is_run(word: str) -> bool:
    """Whether a word is a run rather than a model or its file, which `etude predict` takes."""
    path = Path(word)
    return "://" in word or (path.exists() and path.suffix not in (".yaml", ".yml") and path.name != "config.json")


VERBS: tuple[Verb[Any, Any, Any], ...] = (
    Verb(name="energy", asks=Energy, inputs=inputs, run=run, show=energy_rows.show),
    Verb(name="energy predict", asks=EnergyPredict, inputs=predict_inputs, run=run_predict, show=energy_rows.show),
    Verb(name="energy serve", asks=EnergyServe, inputs=serve_inputs, run=run_serve, show=energy_rows.show),
    energy_rows.VERB,
)
