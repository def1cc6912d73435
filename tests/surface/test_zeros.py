"""A zero that would mean no limit, or that a run would divide by, is refused where it stands; so is what cannot be read
of a rate, a mix or groups."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.make.generate.sections import mix_of
from etude.surface.cli import main
from etude.world.fleet import parse_checkpoints
from etude.world.fleet.federated.clients import alike
from etude.world.fleet.federated.request import grouped
from etude.world.serve.asked.stream import rates_of
from etude.world.serve.cache import cache_rules
from etude.world.serve.limits import parse_limits


def mixed(text: str) -> dict[str, float]:
    return mix_of(text, ("image", "text"), "--mix")


def in_groups(text: str) -> Any:
    one = np.ones(8)
    return grouped(alike(tuple("abcdefgh"), one, one, one), text)


@pytest.mark.parametrize(
    ("read", "text", "column", "hint"),
    [
        (parse_limits, "ttft=0s", 6, "leave `ttft` out for no limit"),
        (parse_limits, "chat:ttft=1s;batch:latency=0ms", 28, "leave `latency` out for no limit"),
        (cache_rules, "prefix host=64GB@0GB/s", 18, "leave `@0GB/s` out for the rate of the system's tier"),
        (cache_rules, "blocks sharded link=0GB/s", 21, "450GB/s"),
        (parse_checkpoints, "remote:1h:rate=0GB/s", 16, "leave `rate` out for the usual rate"),
        (parse_checkpoints, "local:5min,remote:1h:total=0GB/s", 28, "leave `total` out for no limit"),
        (parse_checkpoints, "remote:1h:read=0", 16, "leave `read` out for the write rate"),
        (parse_checkpoints, "remote:1h:rate_bytes_per_s=0", 28, "450GB/s"),
        (rates_of, "0", 1, "1..20"),
        (rates_of, "1..x", 4, "1..20"),
        (rates_of, "4..", 4, "1..20"),
        (rates_of, "9..4", 1, "1..20"),
        (rates_of, "1e9", 1, "1..20"),
        (mixed, "image:0.3,text:x", 16, "image:0.3"),
        (mixed, "image", 1, "image:0.3"),
        (mixed, "image:0.3,tent:0.1", 11, "did you mean `text`?"),
        (mixed, "image:2", 7, "between 0 and 1"),
        (in_groups, "2y4:available=0.9", 1, "20x50"),
        (in_groups, "2x4:available=0.9,awy=2", 19, "did you mean `away`?"),
        (in_groups, "2x4:available=", 15, "20x50"),
        (in_groups, "groups:available=0.9", 1, "a column `group`"),
    ],
)
def test_what_is_wrong_has_its_column_and_a_hint(read: Callable[[str], Any], text: str, column: int, hint: str):
    with pytest.raises(UsageError) as problem:
        read(text)
    assert problem.value.where.endswith(f"column {column}")
    assert hint in problem.value.hint


def test_what_is_right_is_read():
    assert rates_of("") == () and rates_of(" 4 ") == (4.0,) == rates_of("4e0")
    assert rates_of("1..128") == pytest.approx((1, 2, 4, 8, 16, 32, 64, 128))
    assert mixed("") == {} and mixed("image:0, text:1") == {"image": 0.0, "text": 1.0}
    clients, together = in_groups("2x4: available=0.9, away=5")
    assert clients.group.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert (together.available, together.away) == (0.9, 5.0)
    assert in_groups("2x4")[1].available == 1.0 and in_groups("")[1] is None


def test_a_limit_of_zero_on_a_session_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["serve", "workflow", "swe_agent", "--slo", "latency=0s"]) == 2
    assert "hint: leave `latency` out for no limit" in capsys.readouterr().err
