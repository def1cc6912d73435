"""Commands of analyses, from their declaration in analyse/catalogue.py: they have no files of their own here."""

from __future__ import annotations

from dataclasses import make_dataclass
from importlib import import_module
from inspect import Parameter, signature
from types import ModuleType
from typing import Any, Final

from etude.analyse.catalogue import AnalysisEntry
from etude.base.figures import figure, switch
from etude.steps.asked.runs import Analysed, Analysis, RunSource, record_of, table_of
from etude.surface.verb import Verb

OWN: Final = ("record", "table", "reads", "answer", "code")
"""What the file of an analysis may say of its verb."""
FIGURES: Final = {int: "count", float: "number", str: "text"}


def module_of(entry: AnalysisEntry) -> ModuleType:
    """What a file of this folder would have: `VERBS`."""
    made = ModuleType(f"etude.surface.cli.{entry.command}")
    vars(made)["VERBS"] = (verb_of(entry) if entry.table else verb_asked(entry),)
    return made


def verb_asked(entry: AnalysisEntry) -> Verb[Any, Any, Any]:
    """Its command, where a file has its parameters and what comes of them."""
    file, _, name = entry.asked.partition(":")
    asked = import_module(f"etude.{file}")
    own = {part: getattr(asked, part) for part in OWN if hasattr(asked, part)}
    run = getattr(asked, "run", lambda given: given.run())
    defaults = getattr(asked, "TOOL_DEFAULTS", {})
    return Verb(entry.command, getattr(asked, name), asked.inputs, run, tool=True, tool_defaults=defaults, **own)


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
