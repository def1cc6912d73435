"""Names: a class name stands for one thing, and functions and files are called after what they do or hold.

The counts may fall. Whoever makes one fall writes the new one here; they never rise.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "etude"
CLASSES, FUNCTIONS, FILES, FORMATTED_BY_HAND = 0, 288, 65, 389
"""Most public class names of two or more files, public functions and files that are a bare participle or preposition,
and lines that are kept from the formatter."""

WORDS = re.compile(r"\w+")
PREPOSITIONS = frozenset(
    WORDS.findall(
        "about above across after again against along among apart around at away before behind below beneath beside "
        "besides between beyond by down during for from in inside into later of off on onto out outside over past per "
        "sooner through to toward towards under until up upon with within without"
    )
)
IRREGULAR = frozenset(
    WORDS.findall(
        "begun bound bought broken brought built caught chosen come dealt done drawn driven fallen felt found frozen "
        "given gone grown held hidden kept known laid learnt led left lent lost made meant met paid ran risen said "
        "seen sent shown spent spoken stood taken taught thought thrown told torn understood woken won woven worn "
        "written"
    )
)
NOUNS = frozenset(["feed", "need", "seed", "speed", "embed", "bed", "red", "shed"])
"""Words of the field that only look like participles."""


@cache
def parsed() -> tuple[tuple[Path, ast.Module], ...]:
    return tuple((path, ast.parse(path.read_bytes())) for path in sorted(SOURCE.rglob("*.py")))


def is_bare(name: str) -> bool:
    if name in NOUNS or "_" in name:
        return False
    return name in PREPOSITIONS or name in IRREGULAR or re.fullmatch(r"[a-z]{2,}ed", name) is not None


def test_a_class_name_stands_for_one_thing():
    files: dict[str, set[Path]] = defaultdict(set)
    for path, tree in parsed():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files[node.name].add(path)
    twice = {name: sorted(map(str, where)) for name, where in files.items() if len(where) > 1}
    assert len(twice) <= CLASSES, twice


@pytest.mark.parametrize(("kind", "most"), [("functions", FUNCTIONS), ("files", FILES)])
def test_names_are_nouns_and_verbs(kind: str, most: int):
    if kind == "files":
        found = [str(path.relative_to(SOURCE)) for path, _ in parsed() if is_bare(path.stem)]
    else:
        found = [
            f"{path.relative_to(SOURCE)}: {node.name}"
            for path, tree in parsed()
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and is_bare(node.name)
        ]
    assert len(found) <= most, found


def test_the_formatter_decides():
    found = sum(path.read_text().count("# fmt: skip") for path, _ in parsed())
    assert found <= FORMATTED_BY_HAND


@pytest.mark.parametrize("name", ["told", "beside", "shown", "priced", "before"])
def test_what_a_bare_name_is(name: str):
    assert is_bare(name)
    assert not is_bare(f"{name}_rows")


@pytest.mark.parametrize("name", ["speed", "simulate", "seed", "read_events", "split"])
def test_what_is_none(name: str):
    assert not is_bare(name)
