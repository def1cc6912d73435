"""Random commands: the grammar has no loose ends, a seed draws the same, and a difference is named by its place."""

import json
import re
from itertools import islice
from pathlib import Path

import command_grammar as grammar
from command_files import write_files
from random_commands import Answer, difference, family, told


def test_every_name_of_a_rule_is_a_rule() -> None:
    """What is in angle brackets is a choice, a range, or the name of another rule."""
    rules = grammar.RULES
    plain = re.compile(r"<([a-z ]+)[?]?(?:[*]\d)?>")
    named = {name for texts in rules.values() for text in texts for name in plain.findall(text)}
    assert named <= rules.keys()
    assert rules.keys() <= named | grammar.WEIGHTS.keys()


def test_the_same_seed_draws_the_same_and_every_family_comes() -> None:
    count = 2 * sum(grammar.WEIGHTS.values())
    first, again, other = (list(islice(grammar.commands(seed), count)) for seed in (0, 0, 1))
    assert first == again != other
    assert {family(command) for command in first} == set(grammar.WEIGHTS)
    assert not any(sign in command for command in first for sign in "<>")
    assert all(grammar.words(command)[-1] == "--json" for command in first)


def test_files_are_the_same_every_time_and_all_that_is_named_exists(tmp_path: Path) -> None:
    for place in ("a", "b"):
        write_files(tmp_path / place)
    files = {path.relative_to(tmp_path / "a"): path for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert all(path.read_bytes() == (tmp_path / "b" / name).read_bytes() for name, path in files.items())
    for command in islice(grammar.commands(3), 600):
        for word in re.findall(r"[\w./-]+\.(?:csv|yaml|jsonl|py)\b", command):
            assert (tmp_path / "a" / word).is_file(), word


def test_a_difference_has_a_place() -> None:
    assert difference({"a": [1, 2]}, {"a": [1, 2]}) == ""
    assert difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == "$.a[1].b: 2 -> 3"
    assert difference({"a": 1}, {"a": 1.0}) == "$.a: 1 -> 1.0"
    assert difference({"a": 1}, {"a": 1, "c": 2}) == "$.c is only in the new"
    assert difference({"a": 1, "b": 2}, {"b": 2, "a": 1}) == "$: the order of keys"
    good, bad = Answer(0, json.dumps({"x": 1})), Answer(2, "", "error: no\n")
    assert told(good, bad) == "exit 0 -> 2: error: no"
    assert told(good, Answer(0, json.dumps({"x": 2}))) == "$.x: 1 -> 2"
