from collections.abc import Sequence
from typing import Any

from etude.base.shapes import names_in
from etude.surface.cli.scenarios import with_scenario
from etude.surface.verb import Verb
from etude.world.fleet.asked import experts, shared, train
from etude.world.fleet.shared import kind_of


def meant(args: Sequence[str]) -> str | tuple[str, list[str]]:
    """The verb of words without one: by --serve, by --jobs, or by the kind of a file among them."""
    if "--serve" in args:
        return "fleet experts", [word for word in args if word != "--serve"]
    if any(word == "--jobs" or word.startswith("--jobs=") for word in args):
        return "fleet share"
    kind = next(filter(None, (kind_of(word) for word in args)), "")
    is_help = not args or args[0] in ("-h", "--help")
    return f"fleet {kind}" if kind else "" if is_help else "fleet train"


SHARED = names_in("""
    duration_s useful_fraction goodput_tokens_per_s utilisation wait_s jct_s latency_s step_s rollout_s train_s missed
    fulfilled first_s cost energy_j
""")
"""Predicted figures of devices that are shared, of any kind."""
EXPERTS = dict.fromkeys(
    ("tokens_per_s", "planned_tokens_per_s", "goodput_tokens_per_s", "step_s", "down_s", "energy_j", "cost"),
    "a group of experts with failures",
)


def _sharing(name: str, asks: type[Any]) -> Verb[Any, Any, Any]:
    return Verb(
        f"fleet {name}",
        asks,
        shared.inputs_of(name),
        shared.run_of(name),
        record=shared.record,
        reads=shared.readable,
        says=shared.lines,
        unknown=dict.fromkeys(SHARED, "what shares devices: its times are given, or predicted without a measured twin"),
    )


VERBS = (
    with_scenario(
        Verb(
            "fleet train",
            train.TrainFleet,
            train.inputs,
            train.run,
            record=lambda found: found.record,
            reads=train.readable,
        ),
        train.train_scenario,
    ),
    _sharing("share", shared.Share),
    _sharing("services", shared.ServicesFleet),
    _sharing("backbone", shared.BackboneFleet),
    _sharing("radio", shared.RadioFleet),
    with_scenario(_sharing("functions", shared.FunctionsFleet), shared.functions_scenario),
    with_scenario(
        Verb("fleet experts", experts.Experts, experts.inputs, experts.run, reads=experts.readable, unknown=EXPERTS),
        experts.experts_scenario,
    ),
)
