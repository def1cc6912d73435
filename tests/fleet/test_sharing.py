"""Jobs that share a cluster, worked by hand and held against queueing theory."""

import json
from math import factorial
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.world.fleet.sharing import read_cluster, read_jobs, share, shared_record
from etude.world.fleet.sharing.fluid import shares
from etude.world.fleet.sharing.gangs import Shared


def cluster(tmp_path: Path, text: str = "gpus: 4\nnode_gpus: 4\n"):
    (tmp_path / "c.yaml").write_text(text)
    return read_cluster(tmp_path / "c.yaml")


def jobs(tmp_path: Path, *rows: str, head: str = "name,arrival_s,gpus,duration_s"):
    (tmp_path / "j.csv").write_text("\n".join([head, *rows]) + "\n")
    return read_jobs(tmp_path / "j.csv")


def ends(found: Shared) -> dict[str, float]:
    return dict(zip(found.jobs.name, (found.end_ns / 1e9).tolist(), strict=True))


MIX = ("long,0,4,100", "short,10,2,20", "wide,12,4,10", "small,20,1,5")


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("fifo", {"long": 100, "short": 120, "wide": 130, "small": 135}),  # nobody passes `wide`
        ("backfill", {"long": 100, "short": 120, "small": 105, "wide": 130}),
        ("sjf", {"long": 100, "small": 105, "short": 120, "wide": 130}),  # `wide` is before `short`, and has no room
        # 10: `short` stops `long`; 12: `wide` (10 s) stops `short` (18 left) until 22; then `small` and `short`
        ("srtf", {"wide": 22, "small": 27, "short": 40, "long": 130}),
        ("las", {"long": 100, "short": 120, "small": 105, "wide": 130}),  # all in the first queue
    ],
)
def test_four_jobs_by_hand(policy: str, wanted: dict[str, float], tmp_path: Path):
    found = share(cluster(tmp_path), jobs(tmp_path, *MIX), policy)
    assert ends(found) == wanted


def test_las_lets_new_jobs_pass_those_that_had_their_part(tmp_path: Path):
    # `old` has had 3,600 device seconds at 900 s; `new` came at 500 and takes its place for 100 s
    found = share(cluster(tmp_path), jobs(tmp_path, "old,0,4,2000", "new,500,4,100"), "las")
    assert ends(found) == {"new": 1000, "old": 2100} and found.preemptions.tolist() == [1, 0]


def test_a_switch_costs_time_and_device_seconds_add_up(tmp_path: Path):
    found = share(cluster(tmp_path), jobs(tmp_path, "a,0,4,100", "b,10,4,20"), "srtf", switch_ns=7 * 10**9)
    assert ends(found) == {"b": 30, "a": 127}
    record = shared_record(found)
    assert record["lost_s"]["restart"] == 7 and record["lost_s"]["idle"] == 0
    assert record["useful_s"] + sum(record["lost_s"].values()) == pytest.approx(record["duration_s"])


def test_parts_of_devices_and_places(tmp_path: Path):
    two = cluster(tmp_path, "nodes: [{gpus: 2, kind: a, cpus: 8}, {gpus: 2, kind: b, cpus: 8}]")
    head = "name,arrival_s,gpus,duration_s,gpu_milli,kind,cpu_milli"
    rows = ("half,0,1,100,500,a,0", "other half,0,1,100,500,a,0", "whole,0,1,100,1000,a,0", "late,0,1,10,300,a,0",
            "two,0,2,10,1000,,0", "busy,0,0,50,,a,8000", "busy too,0,0,50,,a,8000")  # fmt: skip
    found = share(two, jobs(tmp_path, *rows, head=head), "backfill")
    assert ends(found) == {"half": 100, "other half": 100, "whole": 100, "late": 110, "two": 10, "busy": 50,
                           "busy too": 100}  # fmt: skip


def test_gangs_wider_than_a_node_and_jobs_that_fit_nowhere(tmp_path: Path):
    three = cluster(tmp_path, "gpus: 12\nnode_gpus: 4\n")
    found = share(three, jobs(tmp_path, "wide,0,10,50", "huge,0,13,5", "rest,0,2,50", "more,0,1,10"), "backfill")
    assert [found.jobs.name[k] for k in found.refused] == ["huge"]
    mixed = cluster(tmp_path, "nodes: [{gpus: 8, kind: a}, {count: 2, gpus: 4, kind: b}]")
    spread = share(mixed, jobs(tmp_path, "b only,0,8,5,b", head="name,arrival_s,gpus,duration_s,kind"))
    assert ends(spread) == {"b only": 5}  # over both nodes of its kind, though another kind has wider ones
    assert ends(found) | {"huge": 0} == {"wide": 50, "rest": 50, "more": 60, "huge": 0}
    with pytest.raises(UsageError, match="none of the 1 jobs fits"):
        share(three, jobs(tmp_path, "huge,0,13,5"))


def test_fair_shares_are_exact():
    # weights 1, 2, 5 of 8 devices; the third wants 2 only, the others share 6 as 1 to 2
    assert shares(np.array([9.0, 9.0, 2.0]), np.array([1.0, 2.0, 5.0]), 8.0).tolist() == [2.0, 4.0, 2.0]
    assert shares(np.array([1.0, 3.0]), np.ones(2), 8.0).tolist() == [1.0, 3.0]


def test_fair_jobs_by_hand(tmp_path: Path):
    head = "name,arrival_s,gpus,duration_s,weight"
    # 4 devices as 1 to 3 while both are there: b has 300 device seconds after 100 s, a 100; a has 300 left
    found = share(cluster(tmp_path), jobs(tmp_path, "a,0,4,100,1", "b,0,4,75,3", head=head), "fair")
    assert ends(found) == {"b": 100, "a": 175}
    alone = share(cluster(tmp_path), jobs(tmp_path, "a,5,3,100,1", "part,200,1,10,1", head=head), "fair")
    assert ends(alone) == {"a": 105, "part": 210}


def test_fair_jobs_pay_for_their_shares(tmp_path: Path):
    priced = "nodes: [{gpus: 2, kind: a, price: 3.6}, {gpus: 2, kind: b, price: 1.8}]"
    head = "name,arrival_s,gpus,duration_s,weight"
    # a has 400 device seconds and b 300, at 2.7 dollars an hour on average; 4 devices for 175 s are all theirs
    found = share(cluster(tmp_path, priced), jobs(tmp_path, "a,0,4,100,1", "b,0,4,75,3", head=head), "fair")
    assert found.cost == pytest.approx([0.30, 0.225]) and found.idle_cost == pytest.approx(0, abs=1e-12)
    # 3 devices for 100 s, then one for 10 s; 4 devices for 205 s are paid for
    alone = share(cluster(tmp_path, priced), jobs(tmp_path, "a,5,3,100,1", "part,200,1,10,1", head=head), "fair")
    assert alone.cost == pytest.approx([0.225, 0.0075])
    record = shared_record(alone, policy="fair")
    assert (record["cost"], record["cost_of_jobs"]) == pytest.approx((4 * 205 * 2.7 / 3600, 0.2325))


def mmc(tmp_path: Path, servers: int, load: float, count: int, seed: int) -> Shared:
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / (load * servers), count))
    rows = [f"j{k},{a:.6f},1,{d:.6f}" for k, (a, d) in enumerate(zip(arrival, rng.exponential(1, count), strict=True))]
    return share(cluster(tmp_path, f"gpus: {servers}\nnode_gpus: {servers}\n"), jobs(tmp_path, *rows), "fifo")


def test_waiting_is_that_of_erlang_and_little_holds(tmp_path: Path):
    servers, load = 4, 0.6
    found = mmc(tmp_path, servers, load, 4000, seed=5)
    naive, free = [], [0] * servers  # the job at the head takes the server that is free first
    for arrival, work in zip(found.jobs.arrival_ns.tolist(), found.jobs.work_ns.tolist(), strict=True):
        start = max(arrival, free.pop(free.index(min(free))))
        naive.append(start - arrival)
        free.append(start + work)
    assert found.waited_ns.tolist() == naive
    offered = servers * load
    last = offered**servers / factorial(servers) / (1 - load)
    delayed = last / (sum(offered**k / factorial(k) for k in range(servers)) + last)
    waits = found.waited_ns / 1e9
    assert (waits > 0).mean() == pytest.approx(delayed, rel=0.15)
    assert waits.mean() == pytest.approx(delayed / (servers * (1 - load)), rel=0.25)
    # Little: the area under those that wait is the sum of their waits, exactly
    time, _, waiting, _ = (np.array(column) for column in zip(*found.series, strict=True))
    assert int((np.diff(time) * waiting[:-1]).sum()) == int(found.waited_ns.sum())


PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,1000,1024,1,1000,,LS,Running,0,100,0
p1,1000,1024,1,460,,BE,Running,10,90,40
p2,1000,1024,1,460,,BE,Pending,20,70,
"""


def test_pods_of_the_trace_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "pods.csv").write_text(PODS)
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,1,T4\n")
    (tmp_path / "c.yaml").write_text("nodes: nodes.csv\n")
    asked = ["fleet", str(tmp_path / "c.yaml"), "--jobs", str(tmp_path / "pods.csv"), "--policy", "fifo"]
    assert main([*asked, "--json", "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert "1 pods were never scheduled" in said.err
    assert [job["wait_s"] for job in found["jobs"]] == [0, 90, 80] and found["recorded_wait_s"]["max"] == 30
    assert found["useful_s"] + sum(found["lost_s"].values()) == pytest.approx(found["duration_s"])
    assert main(["query", str(tmp_path / "out"), "select max(waiting) as w from states", "--csv"]) == 0
    assert capsys.readouterr().out.split() == ["w", "2"]
    assert main(["report", str(tmp_path / "out"), "-o", str(tmp_path / "page.html")]) == 0
    assert "3 jobs under `fifo` waited 56.7 s" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("head", "row", "said"),
    [
        ("name,arrival_s,gpus,duration_s", "a,0,1,-5", "duration_s: `-5`"),
        ("name,arrival_s,gpus,duration_s", "a,0,1.5,5", "1.5 devices"),
        ("name,arrival_s,gpus", "a,0,1", "no column `duration_s`"),
        ("name,arrival_s,gpus,duration_s,mood", "a,0,1,5,bad", "unknown column `mood`"),
        ("name,arrival_s,gpus,duration_s,weight", "a,0,1,5,-1", "weight"),
    ],
)
def test_jobs_that_cannot_be_are_refused(head: str, row: str, said: str, tmp_path: Path):
    with pytest.raises(UsageError, match=said):
        jobs(tmp_path, row, head=head)


def test_a_policy_of_ones_own(tmp_path: Path):
    (tmp_path / "mine.py").write_text("def last(job, now_s):\n    return -job.arrival_s\n")
    found = share(cluster(tmp_path), jobs(tmp_path, *MIX), f"{tmp_path / 'mine.py'}:last")
    assert ends(found) == {"long": 100, "small": 105, "short": 120, "wide": 130}
    with pytest.raises(UsageError, match="unknown policy `magic`"):
        share(cluster(tmp_path), jobs(tmp_path, *MIX), "magic")
