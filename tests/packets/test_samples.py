"""What happened in queues over time, and how long operations took."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from etude.analyse.completions import completions, link_sums
from etude.machine import open_system
from etude.machine.topology import Topology, Wire, switch
from etude.make.generate import MicroOptions, micro
from etude.model.job import Job
from etude.run.simulate import Simulated, simulate
from etude.surface.cli import main

WIRE = Wire(bytes_per_s=1e9, latency_ns=500)


def on(topology: Topology, job: Job, **options: object) -> Simulated:
    return simulate(job, open_system("dgx-h100").resized(len(topology)).replace(topology=topology), **options)


@pytest.fixture(scope="module", params=["roce", "ultra-ethernet"])
def found(request: pytest.FixtureRequest) -> Simulated:
    """Each of 8 ranks sends to each, all at once."""
    job = micro("all_to_all", MicroOptions(ranks=8, sizes=(1 << 22,)))
    return on(switch(8, WIRE), job, network="packets", fabric=request.param)


def test_intervals_add_up_to_what_each_queue_did_in_all(found: Simulated) -> None:
    table = found.link_stats.links
    rows = table.to_pylist()
    lasted = np.array([row["to_ns"] - row["from_ns"] for row in rows])
    assert 16 <= len(rows) / len(set(table["link"].to_pylist())) <= 129
    for queue in found.queues:
        mine = np.array([row["link"] == queue.link for row in rows])
        of = {name: table[name].to_numpy()[mine] for name in table.column_names if name != "link"}
        assert of["most_queue_bytes"].max() == queue.longest_bytes
        assert (of["queue_bytes"] <= of["most_queue_bytes"]).all()
        assert [of[name].sum() for name in ("marks", "cut", "dropped", "pauses")] == [
            queue.marks,
            queue.cut,
            queue.dropped,
            queue.pauses,
        ]
        assert (of["from_ns"][1:] == of["to_ns"][:-1]).all()
        assert of["utilisation"].min() >= 0 and of["utilisation"].max() <= 1 + 1e-9
        busy_ns = next(link.busy_ns for link in found.links if link.link == queue.link)
        assert (of["utilisation"] * lasted[mine]).sum() == pytest.approx(busy_ns, rel=1e-4)


def test_completions_are_those_of_the_operation_and_its_transfers(found: Simulated) -> None:
    """One all-to-all of 56 transfers: the last one ends it but for its launch."""
    whole, each = completions(found.link_stats.tables()).to_pylist()
    assert (whole["of"], whole["what"], whole["count"]) == ("operation", "all_to_all", 1)
    assert (each["of"], each["count"]) == ("transfer", 56)
    assert whole["longest_ns"] == whole["p50_ns"] == found.makespan_ns
    assert each["p50_ns"] <= each["p90_ns"] <= each["p99_ns"] <= each["longest_ns"] <= whole["longest_ns"]
    assert each["longest_ns"] > 0.9 * whole["longest_ns"]


def test_percentiles_are_members_of_what_they_are_of() -> None:
    """Messages of 1 to 8 packets, one after the other on an idle link: each takes its packets, one more and two
    latencies; half of them took 4 packets or less, 90% of 8 are 8 of them."""
    took = [(k + 1) * 4096 + 1000 for k in range(1, 9)]
    times = {"begin_ns": [7] * 8, "end_ns": [7 + t for t in took]}
    stats = {
        "links": pa.table({"queue_bytes": [0.0]}),
        "visits": pa.table({"operation": list(range(8)), **times}),
        "operations": pa.table({"what": ["message"] * 8, "size_bytes": [1] * 8, **times}),
    }
    for row in completions(stats).to_pylist():
        assert row["count"] == 8
        assert [row[f"{p}_ns"] for p in ("p50", "p90", "p99", "longest")] == [took[3], took[7], took[7], took[7]]


def test_the_command_prints_them(tmp_path, capsys) -> None:
    job = tmp_path / "job"
    assert main(["generate", "micro", "all_to_all", "--ranks", "8", "--bytes", "1MB", "-o", str(job)]) == 0
    capsys.readouterr()
    stats = tmp_path / "stats"
    asked = ["simulate", str(job), "--system", "dgx-h100", "--network", "packets", "--link-stats", str(stats), "--json"]
    assert main(asked) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {row["of"] for row in printed["completions"]} == {"operation", "transfer"}
    assert {row["link"] for row in printed["queues_over_time"]} <= {row["link"] for row in printed["queues"]}
    assert sorted(path.name for path in stats.iterdir()) == ["links.parquet", "operations.parquet", "visits.parquet"]


def test_sums_of_links_weigh_their_intervals() -> None:
    """Half used for 30 of 40 ns and idle for 10; a queue of 8 bytes on average for 10 of 40 ns."""
    links = pa.table(
        {
            "link": ["a", "a", "b", "b"],
            "from_ns": [0, 30, 0, 30],
            "to_ns": [30, 40, 30, 40],
            "utilisation": [0.5, 0.0, 1.0, 1.0],
            "queue_bytes": [0.0, 8.0, 0.0, 0.0],
            "most_queue_bytes": [0, 20, 4, 0],
            "marks": [1, 2, 0, 0],
            "cut": [0, 0, 0, 0],
            "dropped": [0, 0, 0, 3],
            "pauses": [0, 1, 0, 0],
            "paused": [0.0, 0.4, 0.0, 0.0],
        }
    )
    first, second = link_sums(links).to_pylist()
    assert first == {
        "link": "a",
        "utilisation": 0.375,
        "queue_bytes": 2.0,
        "most_queue_bytes": 20,
        "marks": 3,
        "cut": 0,
        "dropped": 0,
        "pauses": 1,
        "paused": 0.1,
    }
    assert second["dropped"] == 3 and second["utilisation"] == 1.0


@pytest.mark.parametrize("network", ["packets", "flow"])
def test_a_report_has_links_over_time(tmp_path: Path, network: str) -> None:
    job, stats, times, page = (str(tmp_path / name) for name in ("job", "stats", "times.parquet", "page.html"))
    assert main(["generate", "micro", "all_to_all", "--ranks", "8", "--bytes", "1MB", "-o", job]) == 0
    asked = ["simulate", job, "--system", "dgx-h100", "--network", network, "--link-stats", stats, "--timing", times]
    assert main(asked) == 0
    assert main(["report", job, "--timing", times, "--link-stats", stats, "-o", page]) == 0
    html = Path(page).read_text()
    assert "Links over time" in html and 'data-query="tails"' in html
    assert ("Longest queue" in html) == (network == "packets")
    assert main(["report", job, job, "--link-stats", stats, "-o", page, "--force"]) == 2
