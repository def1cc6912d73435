"""The cheapest deployment: against one count after another, and ranges of its price and parts by hand."""

import json
from math import log
from pathlib import Path

import pytest

import etude
from etude.base.errors import UsageError
from etude.decide.search import search
from etude.decide.search.spaces.deployment import price_range
from etude.surface.cli import main

SPACE = {
    "search": "deployment",
    "model": "gpt2",
    "rate": 2000,
    "count": 200,
    "prompt": 512,
    "output": 32,
    "part": 0.95,
    "slo": "ttft=20ms,tpot=2ms",
    "prices": {"dgx-h100": 2.0},
    "tp": [1],
    "most": 8,
}


def space(folder: Path, **more: object) -> Path:
    (folder / "space.yaml").write_text(json.dumps(SPACE | more))
    return folder / "space.yaml"


def within(replicas: int) -> float:
    given = {"rate": "2000", "count": 200, "prompt": 512, "output_tokens": 32, "system": "dgx-h100"}
    return etude.serve("gpt2", **given, slo=SPACE["slo"], replicas=replicas).summary(SPACE["slo"])["within_limits"]


def test_the_fewest_replicas_are_those_of_counting_up(tmp_path: Path):
    best = search(space(tmp_path)).best
    fewest = next(count for count in range(1, 9) if within(count) >= 0.95)
    assert fewest > 1, "one replica keeps the limits: the test shows nothing"
    assert (best["replicas"], best["gpus"], best["cost_per_hour"]) == (str(fewest), fewest, 2.0 * fewest)


def test_the_price_has_whole_replicas_at_both_ends():
    """3 replicas at $2: half as fast again, 2 of them do; two thirds as fast, 4.5 do, which are 5."""
    assert price_range(3, 2.0, log(1.5)) == {"cost_per_hour_low": 4.0, "cost_per_hour_high": 10.0}
    assert price_range(3, 2.0, None) == {"cost_per_hour_low": None, "cost_per_hour_high": None}


def test_a_dearer_system_with_shorter_tails_is_on_the_frontier(tmp_path: Path):
    found = search(
        space(tmp_path, prices={"dgx-h100": 2.0, "dgx-2": 9.0}, spare=[1.0], slo="ttft=500ms,tpot=20ms", rate=100)
    )
    systems = {row["system"] for row in found.frontier}
    older = next(row for row in found.rows if row["system"] == "dgx-2")
    assert systems == {"dgx-h100"}, "slower and dearer"
    assert older["within_limits_low"] is None, "no row of times was measured there"
    assert any("no evidence" in note and "V100" in note for note in found.notes)


def test_more_replicas_have_shorter_tails(tmp_path: Path):
    found = search(space(tmp_path, spare=[1.0, 2.0]))
    costs = [row["cost_per_hour"] for row in found.frontier]
    tails = [row["ttft_p99_s"] for row in found.frontier]
    assert len(costs) == 2 and costs[1] == 2 * costs[0] and tails[1] < tails[0]
    row = found.frontier[0]
    assert row["ttft_p99_s_low"] < row["ttft_p99_s"] < row["ttft_p99_s_high"]
    assert row["within_limits_low"] <= row["within_limits"] <= row["within_limits_high"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"slo": ""}, "no limit is given"),
        ({"slo": "ttft=1us"}, "no deployment keeps the limits: .* slo"),
        ({"rate": 0}, "no requests are given"),
        ({"requests": "r.csv"}, "`count` is not read with `requests`"),
        ({"score": ["speed"]}, "unknown score `speed`"),
        ({"most": 1, "tp": [2]}, "more devices than `most`"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, more: dict, said: str):
    with pytest.raises(UsageError, match=said):
        search(space(tmp_path, **more))


def test_the_command_finds_what_the_file_does(tmp_path: Path, capsys):
    command = (
        "search deployment gpt2 --rate 2000 --count 200 --prompt 512 --output 32 --part 0.95 --price dgx-h100=2 "
        "--over tp=1 --most 8 --json --slo ttft=20ms,tpot=2ms"
    )
    assert main(command.split()) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best == json.loads(json.dumps(search(space(tmp_path)).best))
    assert best["flags"].startswith("etude serve gpt2 --system dgx-h100 --replicas ")
