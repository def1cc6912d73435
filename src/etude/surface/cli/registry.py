"""All verbs, found by name. A file is loaded when one of its verbs is asked for."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from etude.analyse.catalogue import declaration_of
from etude.base.parameters import parameters_of
from etude.surface.cli.commands import COMMANDS, file_of
from etude.surface.verb import Verb


@cache
def verbs_in(file: str) -> Mapping[str, Verb[Any, Any, Any]]:
    """Verbs of a file of this folder by name; none of one that is written otherwise."""
    return {verb.name: verb for verb in getattr(module_named(file), "VERBS", ())}


def module_named(file: str) -> ModuleType:
    """A file of this folder, or what stands for one where analyse/catalogue.py declares the command."""
    entry = declaration_of(file.replace("_", "-"))
    if entry is None:
        return import_module(f"etude.surface.cli.{file}")
    from etude.surface.cli.catalogue_verbs import module_of

    return module_of(entry)


def all_verbs() -> Iterator[Verb[Any, Any, Any]]:
    for file in dict.fromkeys(file_of(name) for name in COMMANDS):
        yield from verbs_in(file).values()


def verb_named(name: str) -> Verb[Any, Any, Any]:
    return next(verb for verb in all_verbs() if verb.name == name)


def readers_of(name: str, but: str) -> str:
    """Which verbs read a parameter that this one does not have, those of the same word first; empty: none."""
    own, wanted = but.partition(" ")[0], name.replace("-", "_")
    found = [verb.name for verb in all_verbs() if verb.name != but and wanted in parameters_of(verb.asks)]
    near = [one for one in found if one.partition(" ")[0] == own] or found
    return f"read by {', '.join(f'`etude {one}`' for one in near[:3])}" if near else ""
