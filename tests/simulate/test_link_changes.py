"""Links whose rate changes during a run: bytes are the integral of the rate."""

from __future__ import annotations

import math

import pytest

from etude.cli import main
from etude.errors import UsageError
from etude.model.build import TraceBuilder, job_of
from etude.model.schema import Kind
from etude.simulate import simulate
from etude.simulate.options import LinkChange
from etude.store import chakra
from toy_systems import one_level

TOY = one_level("switch", 4)
"""1 byte/ns, 5 ns to the switch and 5 from it."""
LINK = (0, "switch0.0")


def message(size: int, *, senders: int = 1):
    """Ranks 0, 1, ... send so many bytes to the last one."""
    ranks = [TraceBuilder() for _ in range(senders + 1)]
    for rank in range(senders):
        ranks[rank].add(Kind.SEND, "s", dst=senders, tag=rank, in_bytes=size)
        ranks[-1].add(Kind.RECV, "r", src=rank, tag=rank, in_bytes=size, stream=rank)
    return job_of("m", ranks, {})


def takes(*changes: LinkChange, size: int = 100, senders: int = 1) -> int:
    return simulate(message(size, senders=senders), TOY, network="flow", link_changes=changes).makespan_ns


def test_bytes_are_the_integral_of_the_rate():
    assert takes() == 10 + 100
    # 40 bytes in 40 ns, then 60 at a quarter of the rate
    assert takes(LinkChange(40, LINK, 4.0)) == 10 + 40 + 240
    # ... restored after 40 ns of that: 10 bytes went, 50 are left
    assert takes(LinkChange(40, LINK, 4.0), LinkChange(80, LINK, 1.0)) == 10 + 80 + 50
    assert takes(LinkChange(80, LINK, 1.0), LinkChange(40, LINK, 4.0)) == 10 + 80 + 50


def test_a_failed_link_waits_until_it_is_back():
    assert takes(LinkChange(40, LINK, math.inf), LinkChange(1000, LINK, 1.0)) == 10 + 1000 + 60
    assert takes(LinkChange(0, LINK, math.inf), LinkChange(1000, LINK, 2.0)) == 10 + 1000 + 200


def test_what_does_not_change_or_comes_late_changes_nothing():
    assert takes(LinkChange(50, LINK, 1.0)) == takes(LinkChange(10**6, LINK, 8.0)) == takes()
    assert takes(LinkChange(40, (3, "switch0.0"), 4.0)) == takes()


def test_others_take_what_a_slow_link_leaves():
    # Two senders share the port of the receiver: 50 bytes each in 100 ns. Then one has a tenth of its link: it moves
    # 0.1 bytes/ns and the other 0.9, which ends after 50 / 0.9 = 55.6 ns, rounded up to 56.
    both = simulate(message(100, senders=2), TOY, network="flow", link_changes=(LinkChange(100, LINK, 10.0),))
    ends = sorted(int(both.timing.block(rank)[1][0]) for rank in (0, 1))
    assert ends == [100 + 56 + 10, 100 + 500 + 10]


def test_bad_changes():
    for wrong, said in (
        ((LinkChange(-1, LINK, 2.0),), "before the run"),
        ((LinkChange(1, LINK, 0.0),), "not a positive factor"),
        ((LinkChange(1, LINK, math.inf),), "never comes back"),
        ((LinkChange(1, (0, 1), 2.0),), "no link joins"),
    ):
        with pytest.raises(UsageError, match=said):
            takes(*wrong)
    with pytest.raises(UsageError, match="need flows"):
        simulate(message(100), TOY, link_changes=(LinkChange(1, LINK, 2.0),))


def test_the_flag(tmp_path, capsys):
    (tmp_path / "m").mkdir()
    chakra.write_job(message(10**6), tmp_path / "m")
    asked = ["simulate", str(tmp_path / "m"), "--system", "dgx-h100", "--network", "flow"]
    assert main(asked) == 0
    assert main([*asked, "--link-change", "1us:0/switch0.0=4"]) == 0
    assert main([*asked, "--link-change", "0/switch0.0=4"]) == 2
    assert "has no time" in capsys.readouterr().err
