"""What makes the workloads of a scenario: a file for each kind, with one function `make`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from etude.base.errors import UsageError
from etude.base.parameters import YAML, ask, parameters_of
from etude.world.scenario import Scenario, WorkloadSpec

Made = tuple[Any, tuple[str, ...]]
"""A workload, and what is to be said of it."""


@cache
def kinds() -> tuple[str, ...]:
    """Kinds of workloads."""
    names = (path.name for path in files("etude.world.makers").iterdir())
    return tuple(sorted(name.removesuffix(".py") for name in names if name.endswith(".py") and name[0] != "_"))


def is_kind(name: str) -> bool:
    """Whether a key of a workload says its kind."""
    return name.isidentifier() and find_spec(f"etude.world.makers.{name}") is not None


def maker(kind: str) -> Callable[..., Made]:
    """make(spec, scenario, devices, events) of a kind."""
    found: Callable[..., Made] = import_module(f"etude.world.makers.{kind}").make
    return found


def request(cls: type[Any], spec: WorkloadSpec, given: Mapping[str, Any], scenario: Scenario, verb: str) -> Any:
    """What a workload asks for, as the verb of its kind has it. Raises UsageError that says where."""
    texts = {p.name for p in parameters_of(cls).values() if p.kind == "text"}
    own = {
        name: str(value) if name in texts and type(value) in (int, float) else value for name, value in given.items()
    }
    try:
        return ask(cls, own, YAML, verb=verb)
    except UsageError as problem:
        at = f"{scenario.where}: workloads: {spec.name}"
        at = f"{at}: {problem.where}" if problem.where else at
        raise UsageError(problem.problem, where=at, hint=problem.hint) from None


def refused(problem: str, spec: WorkloadSpec, scenario: Scenario, hint: str = "") -> UsageError:
    return UsageError(problem, where=f"{scenario.where}: workloads: {spec.name}", hint=hint)
