"""Chains of tries: by hand where a try cannot fail or cannot succeed, and against a try-by-try twin."""

import json
import random

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.world.fleet.retries import chains, parse_retries

MIN = 60_000_000_000
DAY = 1440 * MIN
JOB = ["fleet", "gpt2", "--gpus", "8", "--system", "dgx-h100", "--days", "1", "--checkpoint", "remote:5min"]


def test_a_try_that_cannot_fail_comes_after_its_interval_or_at_once():
    found = chains(parse_retries("auto:p=1,every=11min"), 3, most_ns=DAY)
    assert (found.wait_ns.tolist(), found.tries.tolist(), found.ended.tolist()) == ([11 * MIN] * 3, [1] * 3, [0] * 3)
    assert chains(parse_retries("auto:p=1,every=11min,first=0s"), 2, most_ns=DAY).wait_ns.tolist() == [0, 0]


def test_a_stage_that_never_succeeds_hands_over_after_its_tries():
    # three tries at 11, 22 and 33 min; then the next stage's at 33 + 20 min
    found = chains(parse_retries("auto:p=1e-12,every=11min,tries=3;manual:p=1,every=20min"), 1, most_ns=DAY)
    assert (found.wait_ns[0], found.tries[0], found.ended[0]) == (53 * MIN, 4, 1)
    never = chains(parse_retries("auto:p=1e-12,every=11min,tries=3"), 1, most_ns=DAY)
    assert (never.wait_ns[0], never.tries[0], never.ended[0]) == (DAY, 3, -1)
    assert never.record(np.ones(1, bool)) == {"chains": 1, "tries": 3, "ended": {"auto": 0}, "never": 1, "wait_s": None}


def test_many_chains_are_as_a_twin_that_tries_one_by_one():
    """Another generator, try by try: means of 20,000 agree within five standard errors."""
    draw, waits, by_auto = random.Random(7), [], 0
    for _ in range(20_000):
        minutes = 0
        for number in range(10**6):
            minutes += 5 if number < 4 else 30
            if draw.random() < (0.2 if number < 4 else 0.5):
                by_auto += number < 4
                break
        waits.append(minutes)
    found = chains(parse_retries("auto:p=0.2,every=5min,tries=4;hand:p=0.5,every=30min"), 20_000, most_ns=100 * DAY)
    error = np.std(waits) / np.sqrt(20_000) * np.sqrt(2)
    assert abs(found.wait_ns.mean() / MIN - np.mean(waits)) < 5 * error
    assert abs((found.ended == 0).mean() - by_auto / 20_000) < 5 * np.sqrt(0.25 / 10_000)


@pytest.mark.parametrize(
    ("text", "why"),
    [("auto:p=0,every=1min", "not positive"), ("auto:p=2,every=1min", "more than 1"), ("auto:p=0.5", "every"),
     ("auto:p=0.5,every=1min;by:p=1,every=1h", "no limit"), ("auto:p=0.5,evry=1min", "evry"), ("auto:0.5", "no value"),
     ("a:p=1,every=1s,tries=1;a:p=1,every=1s", "the same name")],
)  # fmt: skip
def test_what_cannot_be_is_refused(text: str, why: str):
    with pytest.raises(UsageError, match=why):
        parse_retries(text)


def test_the_job_is_down_for_its_chains(capsys: pytest.CaptureFixture[str]):
    """Two faults at fixed times, a try that cannot fail after 10 min: 1,200 s more are lost, all of them waiting."""
    found = []
    for more in ([], ["--retry", "auto:p=1,every=10min"]):
        assert main([*JOB, "--faults", "kill:scope=process,at=6h,every=6h,times=2", *more, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    plain, tried = found
    assert "retries" not in plain
    assert tried["retries"] == {"chains": 2, "tries": 2, "ended": {"auto": 2}, "never": 0, "wait_s": 600.0}
    assert tried["lost_s"]["detect"] - plain["lost_s"]["detect"] == pytest.approx(1200)
    assert tried["lost_s"]["restart"] == pytest.approx(plain["lost_s"]["restart"])
    assert main([*JOB, "--faults", "llama3", "--recover", "spare", "--retry", "auto:p=1,every=10min"]) == 2
    assert "restart" in capsys.readouterr().err
