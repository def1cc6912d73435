"""What is asked of the energy of a run, or of a step that is predicted."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import part, text
from etude.base.parameters import spelled
from etude.base.talk import say
from etude.run.simulate.settings import SimulationSettings
from etude.steps.asked.plans import ModelOrConfig, PlanInput, model_asked, plan_asked
from etude.steps.asked.power import KERNELS, KernelChoice, LongInput, PowerInput, PowerInputs, power_system
from etude.steps.asked.runs import RanOnInput, RunInput, RunSource, grown, no_times
from etude.steps.asked.simulation import PANEL, Checked, OnSystem
from etude.steps.asked.times import times_wanted

if TYPE_CHECKING:
    from etude.cost.stacks import Stack
    from etude.machine.system import Device, System
    from etude.make.generate import Plan
    from etude.make.generate.model import Model
    from etude.model.job import Job
    from etude.model.run import Run
    from etude.steps.energy import Clocked


@dataclass(frozen=True, kw_only=True)
class EnergyOf(RunInput, RanOnInput, LongInput, PowerInput):
    """Power over time and energy of a run, or of a predicted model: J, kWh, carbon, price

    etude energy run/ --ran-on h200
    etude energy job/ --system dgx-h200 --clock 0.8
    etude energy predict llama3-8b --gpus 64 --zero 3 --system dgx-h100 --region sweden
    etude energy serve qwen3-8b --prefill 2048 --decode 256 --batch 16 --system dgx-h200 --clock 1200MHz
    etude energy rows measured.csv

    A job without times, or at another clock, is simulated on the system; else the system says only which devices a
    run had. `--clock` and `--cap` were compared with measurements of an H200; other devices were not measured, and
    the output says so."""

    system: str = text(
        "simulate there what has no times, or with --clock or --cap; else the hardware of the run: a name of "
        "`etude systems`, or a file",
        names=("-s",),
        like="dgx-h100",
    )


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

    stack: str = text("software stack: a name that `etude stacks` lists, or a YAML file", like="nemo", panel="Machine")
    settings: SimulationSettings = part(SimulationSettings, PANEL, only=KERNELS)


@dataclass(frozen=True, slots=True)
class EnergyInputs:
    source: RunSource
    system: str
    device: "Device | None"
    """The device of the run, where one is named."""
    power: PowerInputs


def energy_inputs(asked: EnergyOf) -> EnergyInputs:
    from etude.machine import device_names, open_device

    on, is_device = asked.ran_on, asked.ran_on in device_names()
    if on and not is_device and asked.system:  # a system, which may have devices of several kinds
        raise UsageError(
            f"{spelled(asked, 'ran_on')} and {spelled(asked, 'system')} both name a system", hint="give one of them"
        )
    groups, timing = (None if path is None else Path(path) for path in (asked.groups, asked.timing))
    source = RunSource(Path(asked.path), timing=timing, groups=groups, workers=asked.workers, times=times_wanted(asked))
    system = asked.system or ("" if is_device else on)
    return EnergyInputs(source, system, open_device(on) if is_device else None, PowerInputs.repeated(asked))


def energy_of(given: EnergyInputs) -> dict[str, Any]:
    job, found = given.source.find()
    return given.power.found(_clocked(given, job, found))


def _clocked(given: EnergyInputs, job: "Job", recorded: "Run | None") -> "Clocked":
    """A run as recorded. Without times, or at another clock, as simulated on the system."""
    from etude.analyse.devices import device_of
    from etude.machine import open_system
    from etude.steps.energy import Clocked

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


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyPredictInputs:
    model: "Model"
    plan: "Plan"
    system: "System"
    stack: "Stack"
    choice: KernelChoice
    check: bool
    power: PowerInputs


def energy_predict_inputs(asked: EnergyPredict) -> EnergyPredictInputs:
    from etude.cost.stacks import open_stack

    (model, said), power = model_asked(asked), PowerInputs.repeated(asked)
    return EnergyPredictInputs(
        model=model, plan=plan_asked(asked, model, said), system=power_system(asked, power), power=power,
        stack=open_stack(asked.stack or "default"), choice=KernelChoice.of(asked), check=asked.memory_check,
    )  # fmt: skip


def predicted_energy(given: EnergyPredictInputs) -> dict[str, Any]:
    from etude.cost.choice import Menu
    from etude.steps.energy import Clocked
    from etude.steps.step import predict

    kernels, units = given.choice.kernels, given.choice.units
    found = predict(
        given.model, given.plan, given.system, stack=given.stack, check=given.check, kernels=kernels, units=units
    )
    return given.power.found(Clocked.of_step(found, Menu.of(kernels, units)))
