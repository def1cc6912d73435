"""What all declared verbs have in common can be told from their declarations."""

from collections import defaultdict

import pytest

from etude.base.parameters import VerbParameter, parameters_of
from surface.stage import VERBS

THEIRS = "chakra"
"""The official tools' commands, which have the official tools' flags: they replace what is there, as these do."""


def own(name: str) -> dict[str, VerbParameter]:
    return dict(parameters_of(VERBS[name].asks))


@pytest.mark.parametrize("name", [name for name in VERBS if not name.startswith(THEIRS)])
def test_what_writes_may_be_forced(name: str) -> None:
    places = [p for p in own(name).values() if p.kind == "out"]
    if places:
        force = own(name)["force"]
        assert force.kind == "switch" and "-f" in force.about["names"]


SHORT = {"-f": "--force", "-o": "--out", "-j": "--workers", "-s": "--system", "-d": "--device", "-w": "--write"}
"""Short flag -> the one flag that it is short for."""


def test_a_short_flag_is_short_for_one_flag() -> None:
    wrong = []
    for name in VERBS:
        for p in own(name).values():
            spellings = [f"--{p.name.replace('_', '-')}", *p.about.get("names", ())]
            short = [one for one in spellings if not one.startswith("--")]
            wrong += [(name, p.name, one) for one in short if SHORT.get(one) not in spellings]
    assert wrong == []


def test_common_parameters_are_of_one_kind() -> None:
    kinds = defaultdict(set)
    for name in VERBS:
        for p in own(name).values():
            kinds[p.name].add(p.kind)
    common = {"json": {"switch"}, "force": {"switch"}, "out": {"out"}, "workers": {"count"}, "seed": {"count"}}
    assert {name: kinds[name] for name in common} == common


@pytest.mark.parametrize("flag, name", [("-o", "out"), ("-f", "force"), ("-j", "workers")])
def test_common_parameters_have_their_short_flags(flag: str, name: str) -> None:
    without = [verb for verb in VERBS if name in own(verb) and flag not in own(verb)[name].about.get("names", ())]
    assert without == []


@pytest.mark.parametrize("name", [name for name in VERBS if not name.startswith(THEIRS)])
def test_what_prints_a_result_prints_json(name: str) -> None:
    """A verb that has nothing to print as JSON is one that writes, or shows a file."""
    parameters = own(name)
    if "json" not in parameters:
        assert any(p.kind == "out" for p in parameters.values()) or name in SILENT
    tables = {"csv", "md"} & parameters.keys()
    assert not tables or (tables == {"csv", "md"} and "json" in parameters)


SILENT = ("study show", "study new", "systems check", "mcp", "studio")
"""The file of a study, a file that is written, a yes or no, servers."""


def test_what_works_on_a_cluster_works_in_parallel_here() -> None:
    assert [name for name in VERBS if "ray" in own(name) and "workers" not in own(name)] == []
