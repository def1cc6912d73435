"""Every entry of the gallery has its published figures as claims, a grade, and why its own figures differ."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from etude.decide.study import entries
from etude.decide.study import study as opened

KEPT: dict[str, Any] = json.loads((Path(__file__).parents[2] / "benchmarks/claims.json").read_text("utf-8"))
NAMES = [entry["name"] for entry in entries()]


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_has_claims_and_a_grade(name: str) -> None:
    spec = opened(name).spec
    assert spec.claims
    assert re.fullmatch(r"faithful|thin: \S.{10,}", str(spec.facts["grade"]))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_kept_is_of_these_claims_and_each_that_differs_says_why(name: str) -> None:
    claims, found = opened(name).spec.claims, KEPT[name]["claims"]
    assert [row["figure"] for row in found] == [claim.figure for claim in claims]
    differ = ("weaker", "stronger", "contradicts")
    assert [
        claim.figure for claim, row in zip(claims, found, strict=True) if row["verdict"] in differ and not claim.why
    ] == []
    assert [row["figure"] for row in found if row["verdict"] == "not asked"] == []


def test_a_file_for_every_entry_and_no_other() -> None:
    assert sorted(KEPT) == sorted(NAMES)
