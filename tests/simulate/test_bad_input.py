"""What cannot be simulated is refused before anything runs: what is wrong, and where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind
from etude.store import chakra
from etude.surface.cli import main

SYSTEM = """
name: four
device: {name: d}
levels: [{name: wire, kind: ring, size: 4, bandwidth: 1GB/s, latency: 100ns}]
"""
AR = Collective.ALL_REDUCE


def sums(*ranks: tuple[Collective, int, str | None], groups: dict[str, list[int]] | None = None) -> Job:
    builders = []
    for what, size, group in ranks:
        b = TraceBuilder()
        b.add(Kind.COLL, "sum", source_id=7, collective=what, in_bytes=size, group=group)
        builders.append(b)
    return job_of("w", builders, groups or {})


def four(size: int = 8) -> Job:
    return sums(*[(AR, size, None)] * 4)


def crossed() -> Job:
    """Two groups of the same two ranks, in opposite order."""
    builders = []
    for rank in range(2):
        b = TraceBuilder()
        for name in "gh" if rank else "hg":
            b.add(Kind.COLL, source_id=len(b), collective=AR, in_bytes=8, group=name, stream=1)
        builders.append(b)
    return job_of("w", builders, {"g": [0, 1], "h": [0, 1]})


CASES: dict[str, tuple[Callable[[], Job], str, list[str], int, str]] = {
    "placement of two ranks on one device": (
        four, SYSTEM + "placement: [0, 1, 1, 2]\n", [], 2, "four.yaml: placement: two ranks are on the same device",
    ),
    "placement outside the system": (
        four, SYSTEM + "placement: [0, 1, 2, 9]\n", [], 2, "four.yaml: placement: a device outside the system's 4",
    ),
    "more ranks than places": (
        lambda: sums(*[(AR, 8, None)] * 5), SYSTEM, [], 2, "system `four` has no device for rank 4: it has 4",
    ),
    "a group outside the job": (
        lambda: sums(*[(AR, 8, "g")] * 2, groups={"g": [0, 1, 7]}), SYSTEM, [], 2,
        "group `g`: system `four` has no device for rank 7",
    ),
    "a rank that is no member": (
        lambda: sums(*[(AR, 8, "g")] * 3, groups={"g": [0, 1]}), SYSTEM, [], 2, "rank 2",
    ),
    "zero bandwidth": (
        four, SYSTEM.replace("1GB/s", "0GB/s"), [], 2, "four.yaml: levels[0]: bandwidth: `0GB/s` is not positive",
    ),
    "an unknown key": (
        four, SYSTEM.replace("latency", "latancy"), [], 2, "four.yaml: levels[0]: unknown key `latancy`",
    ),
    "an unknown algorithm": (
        four, SYSTEM, ["--collective", "all_reduce=magic"], 2, "all_reduce has no algorithm `magic`",
    ),
    "an unknown algorithm on links": (
        four, SYSTEM, ["--network", "links", "--collective", "all_reduce=magic"], 2, "has no algorithm `magic`",
    ),
    "an unknown collective": (four, SYSTEM, ["--collective", "all_sum=ring"], 2, "unknown collective `all_sum`"),
    "a topology that falls apart": (
        four, SYSTEM, ["--network", "flow", "--failed-link", "0-1", "--failed-link", "0-3"], 2,
        "four: no route from device.1 to device.0 without the failed links: 0/1, 0/3",
    ),
    "a failed link in closed form": (
        four, SYSTEM, ["--failed-link", "0-1"], 2, "ranks 0 and 1 has failed, but group `world` needs it",
    ),
    "collectives of different kind": (
        lambda: sums((AR, 8, None), (Collective.ALL_GATHER, 8, None)), SYSTEM, [], 2,
        "rank 1: the 1st collective of the world",
    ),
    "collectives of different size": (lambda: sums((AR, 8, None), (AR, 16, None)), SYSTEM, [], 2, "16"),
    "collectives in another order": (crossed, SYSTEM, [], 1, "cycle: rank 0 at node"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_it_is_refused(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    make, system, options, code, problem = CASES[case]
    (tmp_path / "four.yaml").write_text(system)
    (tmp_path / "run").mkdir()
    chakra.write_job(make(), tmp_path / "run")
    asked = ["simulate", str(tmp_path / "run" / "w"), "--system", str(tmp_path / "four.yaml"), *options]
    assert main(asked) == code
    told = capsys.readouterr()
    assert problem in told.err
    assert told.err.startswith("error: ")
    assert told.out == ""
    if code == 1:
        assert main([*asked, "--json"]) == 1
        assert json.loads(capsys.readouterr().out)["deadlock"]["waiting"]
