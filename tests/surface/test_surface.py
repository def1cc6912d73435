"""Nothing that is given is ignored: every parameter of every verb changes what the run reads, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from etude.base.errors import UsageError
from etude.base.parameters import FLAGS, MCP, PYTHON, YAML, Spelling, VerbParameter, parameters_of
from etude.surface.cli.registry import readers_of
from etude.surface.verb import Verb, resolve
from surface.stage import VERBS, alternatives, bases, canonical, make_stage

Surfaces = tuple[Spelling, ...]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("stage")
    make_stage(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def read(verb: Verb[Any, Any, Any], given: dict[str, Any], spelling: Spelling) -> Any:
    found = resolve(verb, given, spelling, readers_of)
    return canonical((found.inputs, found.output))


def with_needs(verb: Verb[Any, Any, Any], p: VerbParameter, base: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The request as it is, and with each of the parameters that this one needs."""
    yield base
    for need in filter(None, p.about.get("needs", "").split("|")):
        name, equals, value = need.partition("=")
        for one in [value] if equals else alternatives(parameters_of(verb.asks)[name]):
            if name not in base:
                yield {**base, name: one}


@pytest.mark.parametrize("name", VERBS)
def test_each_parameter_is_read_or_refused(name: str, stage: Path) -> None:
    verb = VERBS[name]
    ignored, never = [], []
    requests = bases(verb)
    for p in parameters_of(verb.asks).values():
        taken = False
        for base in requests:
            for request in with_needs(verb, p, {k: v for k, v in base.items() if k != p.name or p.is_required}):
                for value in (one for one in alternatives(p) if one != request.get(p.name)):
                    # other surfaces differ in the spelling alone: once for each parameter is enough
                    outcome = tried(verb, request, p, value, (FLAGS,) if taken else (FLAGS, YAML, PYTHON, MCP))
                    taken |= outcome == "read"
                    if outcome == "ignored":
                        ignored.append(f"{p.name}={value!r} with {request}")
        if not taken and not any(p.name in base for base in requests):
            never.append(p.name)
    assert ignored == []
    assert never == [], "parameters that no example, nor one with what they need, can use"


def tried(verb: Verb[Any, Any, Any], base: dict[str, Any], p: VerbParameter, value: Any, surfaces: Surfaces) -> str:
    """`read`, `refused`, or `ignored`: the same for every surface."""
    before = asked_before(verb, base)
    if before is None:
        return "not asked"
    outcomes = set()
    for spelling in surfaces:
        try:
            outcomes.add("ignored" if read(verb, {**base, p.name: value}, spelling) == before else "read")
        except UsageError as problem:
            named = spelling.name(p.name).strip("`") in str(problem) or p.name.upper() in str(problem)
            outcomes.add("refused" if named else f"refused without its name: {problem}")
    assert len(outcomes) == 1, f"{p.name}={value!r}: {outcomes}"
    outcome = outcomes.pop()
    assert not outcome.startswith("refused without"), f"{p.name}={value!r} with {base}: {outcome}"
    return outcome


BEFORE: dict[str, Any] = {}


def asked_before(verb: Verb[Any, Any, Any], base: dict[str, Any]) -> Any:
    """What the run reads of a request without the parameter; None where it cannot be asked so."""
    key = f"{verb.name} {sorted(base.items(), key=repr)!r}"
    if key not in BEFORE:
        try:
            BEFORE[key] = read(verb, base, FLAGS)
        except UsageError:
            BEFORE[key] = None
    return BEFORE[key]


@pytest.mark.parametrize("name", VERBS)
def test_a_misspelt_parameter_is_refused_with_its_nearest(name: str, stage: Path) -> None:
    verb = VERBS[name]
    last = list(parameters_of(verb.asks))[-1]
    for spelling in (FLAGS, YAML, PYTHON, MCP):
        with pytest.raises(UsageError) as problem:
            resolve(verb, {f"{last}x": "1"}, spelling)
        assert spelling.name(last).strip("`") in str(problem.value)


@pytest.mark.parametrize("name", VERBS)
def test_help_shows_at_most_about_forty_options(name: str) -> None:
    shown = [p for p in parameters_of(VERBS[name].asks).values() if not p.about.get("rare") and not p.is_argument]
    assert len(shown) <= 42, "figure(..., rare=True) moves an option behind --help-all"


@pytest.mark.parametrize("name", VERBS)
def test_the_examples_of_the_help_can_be_run(name: str, stage: Path) -> None:
    for base in bases(VERBS[name]):
        read(VERBS[name], base, FLAGS)
