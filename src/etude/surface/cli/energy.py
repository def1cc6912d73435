"""Energy of a run, of a model that is predicted, or of measured rows."""

from pathlib import Path
from typing import Any

from etude.steps.asked.energy import (
    EnergyOf,
    EnergyPredict,
    energy_inputs,
    energy_of,
    energy_predict_inputs,
    predicted_energy,
)
from etude.steps.asked.power import energy_shown
from etude.surface.cli.arguments import values
from etude.surface.cli.build import command_of
from etude.surface.verb import Verb
from etude.world.serve.asked.energy import (
    EnergyRows,
    EnergyServe,
    energy_serve_inputs,
    power_errors,
    power_lines,
    power_rows_inputs,
    predicted_power,
    served_energy,
)

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
    Verb("energy", EnergyOf, energy_inputs, energy_of, reads=energy_shown),
    Verb("energy predict", EnergyPredict, energy_predict_inputs, predicted_energy, reads=energy_shown),
    Verb("energy serve", EnergyServe, energy_serve_inputs, served_energy, reads=energy_shown),
    Verb(
        "energy rows",
        EnergyRows,
        power_rows_inputs,
        predicted_power,
        record=lambda found: {"rows": found},
        reads=power_lines,
        says=power_errors,
    ),
)
