"""Commands of analyses that are declared in analyse/catalogue.py and have no file of their own here."""

from __future__ import annotations

from dataclasses import make_dataclass
from inspect import Parameter, signature
from types import ModuleType
from typing import Any, Final

from etude.analyse.catalogue import AnalysisEntry
from etude.base.figures import figure, switch
from etude.steps.asked.runs import Analysed, Analysis, RunSource, record_of, table_of
from etude.surface.verb import Verb

FIGURES: Final = {int: "count", float: "number", str: "text"}


def module_of(entry: AnalysisEntry) -> ModuleType:
    """What a file of this folder would have: `VERBS`."""
    made = ModuleType(f"etude.surface.cli.{entry.command}")
    vars(made)["VERBS"] = (verb_of(entry),)
    return made


def verb_of(entry: AnalysisEntry) -> Verb[Any, Any, Any]:
    """Its command: a run, and an option for each figure of its function."""
    function = entry.function()
    own = [one for one in signature(function, eval_str=True).parameters.values() if one.default is not Parameter.empty]
    asks = make_dataclass(
        entry.title.title().replace(" ", ""),
        [(one.name, type(one.default), _figure(one, entry)) for one in own],
        bases=(Analysis,),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": f"{entry.does}\n\n    etude {entry.command} run/\n"},
    )

    def inputs(asked: Any) -> Analysed:
        given = {one.name: getattr(asked, one.name) for one in own}
        return Analysed(RunSource.of(asked), lambda run: function(run, **given))

    return Verb(entry.command, asks, inputs, Analysed.with_figures, record=record_of, table=table_of, tool=True)


def _figure(one: Parameter, entry: AnalysisEntry) -> Any:
    doc = entry.options.get(one.name, one.name.replace("_", " "))
    if isinstance(one.default, bool):
        return switch(doc)
    if type(one.default) not in FIGURES:
        raise TypeError(f"{entry.table}: `{one.name}` is not a number, a text or a switch; write its command by hand")
    return figure(FIGURES[type(one.default)], doc, one.default)
