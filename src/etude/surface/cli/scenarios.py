"""Verbs that print a run as a file for `etude world run`, in the place of the run."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from etude.surface.verb import Verb
from etude.world.scenario import ScenarioText

AnyVerb = Verb[Any, Any, Any]


def with_scenario(verb: AnyVerb, scenario: Callable[[Any, Any], ScenarioText]) -> AnyVerb:
    """The verb with `--scenario`, which its declaration has; `scenario` makes the text from what was asked and from the
    inputs of a run."""

    def inputs(asked: Any) -> Any:
        made = verb.inputs(asked)
        return scenario(asked, made) if asked.scenario else made

    reads = verb.reads or verb.record
    return replace(
        verb,
        inputs=inputs,
        run=_either(verb.run, lambda text: text),
        record=_either(verb.record, ScenarioText.record),
        reads=_either(reads, ScenarioText.text),
        says=_either(verb.says, lambda text: ()),
    )


def _either(call: Callable[[Any], Any], of_text: Callable[[ScenarioText], Any]) -> Callable[[Any], Any]:
    return lambda value: of_text(value) if isinstance(value, ScenarioText) else call(value)
