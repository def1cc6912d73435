from collections.abc import Sequence
from typing import Any

from etude.surface.cli.scenarios import with_scenario
from etude.surface.verb import Verb
from etude.world.fleet.asked import federate


def meant(args: Sequence[str]) -> tuple[str, list[str]]:
    """The verb of words without one: by --split, or by --share."""
    words, share = list(args), ""
    for at, word in enumerate(words):
        share = words[at + 1] if word == "--share" and at + 1 < len(words) else share
        share = word.removeprefix("--share=") if word.startswith("--share=") else share
    if share == "server":
        at = next(at for at, word in enumerate(words) if word.startswith("--share"))
        del words[at : at + (1 if "=" in words[at] else 2)]
    if any(word == "--split" or word.startswith("--split=") for word in words):
        return "federate split", words
    return ("federate swarm" if share not in ("", "server") else "federate"), words


UNKNOWN = dict.fromkeys(("duration_s", "round_s", "bound_s"), "rounds of clients, whose devices and links are given")


def _verb(name: str, kind: str, asks: type[Any]) -> Verb[Any, Any, Any]:
    verb = Verb(name, asks, federate.inputs(kind), federate.run, reads=federate.readable, unknown=UNKNOWN)
    return with_scenario(verb, federate.rounds_scenario)


VERBS = (
    _verb("federate", "server", federate.Federate),
    _verb("federate swarm", "swarm", federate.Swarming),
    _verb("federate split", "split", federate.Splitting),
)
