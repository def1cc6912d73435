"""Every predicted figure has a range, or says that there is no evidence for it: each verb is run on something small."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from etude.base.shapes import names_in
from etude.surface.cli.app import app
from surface import predictions
from surface.stage import VERBS, make_stage

FIGURES = set(
    names_in("""
    step_time_ns makespan_ns makespan_s tokens_per_s tokens_per_s_per_gpu output_tokens_per_s goodput_tokens_per_s
    planned_tokens_per_s mfu memory_peak_bytes ttft_s tpot_s itl_s latency_s ttft_ns tpot_ns latency_ns round_s step_s
    goodput_rps energy_j mean_w peak_w per_step_j per_token_j per_request_j kwh carbon_g p95_s
""")
)
"""Names of predicted figures, in whichever record they are."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("stage")
    make_stage(folder)
    predictions.make(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made = CliRunner().invoke(app, ["generate", *shlex.split(predictions.JOB), "-o", "gen"])
        assert made.exit_code == 0, made.output
        yield folder


def records(value: Any) -> Iterator[Mapping[str, Any]]:
    """The record, and records in it that have a basis of their own."""
    if isinstance(value, Mapping):
        yield value
        workloads = value.get("workloads")
        yield from (workloads.values() if isinstance(workloads, Mapping) else ())
        yield from (row for row in value.get("rows", ()) if "basis" in row)
        yield from (value[name] for name in ("best",) if isinstance(value.get(name), Mapping))
    elif isinstance(value, list):
        for one in value:
            yield from records(one)


def without_range(record: Mapping[str, Any]) -> list[str]:
    """Figures that have neither a range nor the words that nothing is known."""
    for basis, low in (("step_basis", "step_time_low_ns"), ("tail_basis", "ttft_p99_s_low")):  # a row of a search
        if basis in record:
            return [] if record[low] is not None or "no evidence" in record[basis] else [basis]
    basis = record.get("basis", {})
    bare = sorted(name for name in FIGURES & record.keys() - basis.keys() if record[name] is not None)
    for name, its in basis.items():
        ends = [record.get(end, {}).get(name) for end in ("low", "high")]
        if its["evidence"] and None not in ends and ends[0] <= ends[1]:
            continue
        if its["evidence"] or ends != [None, None] or not its["text"].startswith("no evidence"):
            bare.append(name)
    return bare


@pytest.mark.parametrize("verb", predictions.COMMANDS)
def test_each_figure_has_a_range_or_says_that_there_is_none(verb: str, stage: Path) -> None:
    done = CliRunner().invoke(app, [*verb.split(), *shlex.split(predictions.COMMANDS[verb]), "--json"])
    assert done.exit_code == 0, done.output
    found = list(records(json.loads(done.stdout)))
    assert any({"basis", "step_basis", "tail_basis"} & one.keys() for one in found)
    assert [name for one in found for name in without_range(one)] == []


def test_every_verb_is_tried_or_is_known_to_predict_nothing() -> None:
    said = predictions.COMMANDS.keys() | predictions.OTHERS.keys()
    left = [name for name in VERBS if name not in said and not name.startswith(predictions.NOTHING)]
    assert left == []


def test_what_has_no_range_is_seen() -> None:
    assert without_range({"mfu": 0.4}) == ["mfu"]
    assert without_range({"mfu": 0.4, "basis": {"mfu": {"evidence": True, "text": "9 rows"}}}) == ["mfu"]
    known = {"low": {"mfu": 0.3}, "high": {"mfu": 0.5}, "basis": {"mfu": {"evidence": True, "text": "9 rows"}}}
    assert without_range({"mfu": 0.4, **known}) == []


def test_days_and_worlds_have_the_range_of_their_step(stage: Path) -> None:
    def out_of(words: str) -> dict[str, Any]:
        return json.loads(CliRunner().invoke(app, [*shlex.split(words), "--json"]).stdout)

    step = out_of(f"predict {predictions.PLAN} --system dgx-h100")
    days = out_of(f"fleet train {predictions.COMMANDS['fleet train']}")
    world = out_of("world run small.yaml")["workloads"]
    ratio = step["high"]["step_time_ns"] / step["step_time_ns"]
    for name in ("step_s", "goodput_tokens_per_s", "tokens"):
        assert days["high"][name] / days[name] == pytest.approx(ratio)
    assert "faults, repairs and saves are taken as they are given" in days["basis"]["tokens"]["text"]
    assert days["low"]["useful_fraction"] is None
    assert world["pretrain"]["high"]["step_s"] > world["pretrain"]["step_s"]
    assert world["chat"]["high"]["ttft_s"] > world["chat"]["ttft_s"]["mean"]
