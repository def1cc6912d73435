"""What links did over time, on two messages that meet at one receiver, worked by hand."""

import json
from pathlib import Path

import pytest

from etude.base.errors import UsageError
from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Kind
from etude.run.simulate.link_stats import LinkStats
from etude.run.simulate.run import simulate
from etude.store import columns
from etude.surface.cli import main
from simulated_jobs import system

ONE = system(4, bandwidth=1e9, latency_ns=0, inner=1)  # one byte per ns into each device


def to_one() -> Job:
    parts = [TraceBuilder() for _ in range(3)]
    for rank in (1, 2):
        parts[0].add(Kind.RECV, src=rank, in_bytes=1000, stream=rank)
        parts[rank].add(Kind.SEND, dst=0, in_bytes=1000)
    return job_of("to one", parts)


@pytest.fixture(scope="module", params=["links", "flow"])
def stats(request: pytest.FixtureRequest) -> tuple[str, LinkStats]:
    found = simulate(to_one(), ONE, network=request.param, link_stats=True)
    assert found.link_stats is not None and found.makespan_ns == 2000
    return request.param, found.link_stats


def test_over_time(stats: tuple[str, LinkStats]):
    network, found = stats
    rows = found.links.to_pylist()
    (into,) = {row["link"] for row in rows if row["operations"] == 2}
    mine = [row for row in rows if row["link"] == into]
    # full all the time, with 2000 bytes in all; flows share it, messages wait for each other
    assert [row["utilisation"] for row in mine] == pytest.approx([1.0] * len(mine))
    assert (mine[0]["from_ns"], mine[-1]["to_ns"]) == (0, 2000)
    first = [row for row in mine if row["to_ns"] <= 1000]
    assert [row["under_way"] for row in first] == pytest.approx([2.0] * len(first))
    assert [row["waiting"] for row in first] == pytest.approx([1.0 if network == "links" else 0.0] * len(first))
    # the link out of each sender: as fast as it gets rid of the bytes
    out = [row for row in rows if row["link"] != into]
    each = 1000 / (1 if network == "links" else 2)
    assert sum(row["utilisation"] * (row["to_ns"] - row["from_ns"]) for row in out) == pytest.approx(2000)
    assert max(row["utilisation"] for row in out) == pytest.approx(each / 1000)


def test_visits_and_operations(stats: tuple[str, LinkStats]):
    network, found = stats
    visits = found.visits.to_pydict()
    assert visits["size_bytes"] == [1000] * 4
    assert sorted(set(visits["end_ns"])) == ([1000, 2000] if network == "links" else [2000])
    operations = found.operations.to_pylist()
    assert [(o["what"], o["group"], o["members"], o["begin_ns"]) for o in operations] == [
        ("message", "1-0", 2, 0),
        ("message", "2-0", 2, 0),
    ]
    assert sorted(o["end_ns"] for o in operations) == ([1000, 2000] if network == "links" else [2000, 2000])


def test_it_is_asked_for_and_queried(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "job").mkdir()
    columns.write_job(to_one(), tmp_path / "job")
    level = "{name: out, kind: switch, size: 4, bandwidth: 1GB/s, latency: 0}"
    (tmp_path / "one.yaml").write_text(f"name: one\ndevice: {{name: d}}\nlevels: [{level}]\n")
    asked = ["simulate", str(tmp_path / "job"), "--system", str(tmp_path / "one.yaml")]
    assert main([*asked, "--network", "flow", "--link-stats", str(tmp_path / "stats")]) == 0
    capsys.readouterr()
    sql = "select count(distinct operation) as sharing from visits join operations using (operation) group by link"
    assert main(["query", str(tmp_path / "stats"), f"{sql} order by 1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"sharing": 1}, {"sharing": 1}, {"sharing": 2}]
    assert main([*asked, "--link-stats", str(tmp_path / "other")]) == 2
    assert "read only by networks with links" in capsys.readouterr().err and not (tmp_path / "other").exists()
    with pytest.raises(UsageError, match="closed forms"):
        simulate(to_one(), ONE, link_stats=True)
