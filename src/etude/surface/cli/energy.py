"""Energy of a run, of a model that is predicted, or of measured rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import part
from etude.base.talk import say
from etude.run.simulate.settings import SimulationSettings
from etude.steps.asked.energy import (
    Energy,
    EnergyPredict,
    energy_inputs,
    energy_of,
    energy_predict_inputs,
    predicted_energy,
)
from etude.steps.asked.power import KERNELS, KernelChoice, PowerInput, PowerInputs, energy_shown, power_system
from etude.steps.asked.simulation import PANEL, Checked, OnSystem
from etude.surface.cli.arguments import values
from etude.surface.cli.build import command_of
from etude.surface.cli.output import emit
from etude.surface.cli.serving import ServingInput, ServingSource
from etude.surface.verb import Verb
from etude.world.serve.asked.energy import EnergyRows, power_errors, power_lines, power_rows_inputs, predicted_power

if TYPE_CHECKING:
    from etude.machine.system import System


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
class EnergyServeInputs:
    source: ServingSource
    system: "System"
    choice: KernelChoice
    check: bool
    power: PowerInputs


def energy_serve_inputs(asked: EnergyServe) -> EnergyServeInputs:
    power = PowerInputs.of(asked)
    return EnergyServeInputs(
        ServingSource.of(asked), power_system(asked, power), KernelChoice.of(asked), asked.memory_check, power
    )


def served_energy(given: EnergyServeInputs) -> dict[str, Any]:
    from etude.cost.choice import Menu
    from etude.steps.energy import Clocked

    kernels, units = given.choice.kernels, given.choice.units
    job = given.source.generate(given.system, check=given.check, weights=Menu.of(kernels, units).weights)
    return given.power.found(Clocked.of_serving(job, given.system, kernels, units))


def show_rows(found: list[dict[str, Any]]) -> None:
    emit(power_lines(found))
    for words in power_errors(found):
        say(words)


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
    Verb(name="energy", asks=Energy, inputs=energy_inputs, run=energy_of, reads=energy_shown),
    Verb(
        name="energy predict", asks=EnergyPredict, inputs=energy_predict_inputs, run=predicted_energy,
        reads=energy_shown,
    ),
    Verb(name="energy serve", asks=EnergyServe, inputs=energy_serve_inputs, run=served_energy, reads=energy_shown),
    Verb(
        name="energy rows", asks=EnergyRows, inputs=power_rows_inputs, run=predicted_power,
        record=lambda found: {"rows": found}, show=show_rows,
    ),
)  # fmt: skip
