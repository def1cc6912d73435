"""Workloads of different kinds on one machine, against twins: each alone, or what is worked out from who held what."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from etude.surface.cli import main
from etude.world.clock import Clock
from etude.world.entities.power import PowerGovernor, drawn_j
from etude.world.policies import policy
from etude.world.serve.requests import requests_of
from etude.world.serve.steps import step_cost
from small_worlds import S, faults, machine_of, serving, training

MACHINE = "machine: {system: dgx-h100, nodes: %d}\nhorizon: 10min\n"
PARTS = {
    "train": '{train: gpt2, gpus: 16, checkpoint: ["remote:60s"]}',
    "chat": "{serve: gpt2, replicas: 1..9, scale: 'queue:1..2,every=5s', rate: 9, count: 900}",
    "agents": "{workflow: swe_agent, models: {planner: llama3-8b, worker: gpt2}, cache: prefix}",
    "videos": "{images: flux.1-dev, requests: 'mix:1024x1024@9', rate: 2, count: 60, gpus: 8, degree: elastic}",
    "post": "{rl: gpt2, nodes: 1, rollout: {samples: 16, tokens: 64}, train: {time: 3s}, steps: 9}",
    "others": "{jobs: jobs.csv, nodes: 1}",
    "rounds": "{federate: gpt2, clients: 3, link: 100Mb/s, lora: 4, rounds: 30, server_devices: 2}",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "jobs.csv").write_text("name,arrival_s,gpus,duration_s\na,0,8,100\nb,10,4,50\n")
    (tmp_path / "spot.csv").write_text("time_s,price\n0,2\n100,5\n450,1\n")
    return tmp_path


def ran(folder, names, capsys, more: str = "", nodes: int = 9, *args: str) -> dict:
    text = MACHINE % nodes + "workloads:\n" + "".join(f"  {name}: {PARTS[name]}\n" for name in names) + more
    (folder / "one.yaml").write_text(text)
    assert main(["world", "run", str(folder / "one.yaml"), "--json", *args]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_does_not_meet_is_as_it_is_alone(folder, capsys):
    """Images beside text, agents, training, post-training, jobs and rounds, on a machine with room for all: each has
    the figures that it has alone, whichever of them are there."""
    together = ran(folder, PARTS, capsys)
    for name in PARTS:
        alone = ran(folder, [name], capsys)
        own = {key: value for key, value in together["workloads"][name].items() if key != "energy_j"}
        assert own == {key: value for key, value in alone["workloads"][name].items() if key != "energy_j"}, name
        for kind in ("device_ns", "energy_mj"):
            assert together["account"][kind]["parts"][name] == alone["account"][kind]["parts"][name]
    two = ran(folder, ["videos", "chat"], capsys)["workloads"]
    assert all(two[name] == together["workloads"][name] for name in two)


def test_everyone_pays_the_spot_price_of_the_time(folder, capsys):
    """Holders pay for what the table of holdings says they had, second by second, with nodes that fail."""
    more = "events: {prices: spot.csv, faults: 'node:mtbf=1h,repair=90s'}\n"
    found = ran(folder, PARTS, capsys, more, 12, "-o", str(folder / "out"))
    rows = pq.read_table(folder / "out" / "holdings.parquet").to_pydict()
    assert len(found["events"]) > 0
    price = np.repeat([2.0, 5.0, 1.0], [100_000, 350_000, 150_000]) / 3.6e6  # dollars for a millisecond of a device
    paid, spent = np.concatenate([[0.0], np.cumsum(price)]), dict[str, float]()
    until = np.arange(len(paid))
    for who in set(rows["holder"]):
        mine = np.array(rows["holder"]) == who
        at, count = (np.array(rows[name])[mine] for name in ("time_s", "devices"))
        bill = np.interp(np.append(at, 600.0) * 1e3, until, paid)
        spent[who] = float((count * np.diff(bill)).sum())
    cost = found["account"]["cost"]
    assert {who: cost["parts"][who] for who in spent} == pytest.approx(spent, abs=1e-6)
    assert cost["total"] == pytest.approx(96 * (100 * 2 + 350 * 5 + 150 * 1) / 3600)


def test_a_cap_over_training_and_serving_loses_no_joule():
    """Five devices draw 1 W each at idle, steps of the job 1 W above that, and a service 1 W in its first minute. The
    cap of 5.5 W leaves half the speed, in the minute after that one a hundredth: 3 steps of 10 J, 0.06, and 24."""
    machine = machine_of(5, faults())
    train = training(machine)
    chat = serving(machine, requests_of([0], [1], [60]), cost=step_cost(tokens=[1], layers_ns=[1e9]))
    clock = Clock(600 * S)
    governor = PowerGovernor(clock, machine, 5.5, 1.0, 1.0, policy("power", "cap-training-first"))
    clock.add(machine, train, chat, governor)
    clock.run()
    train.close()
    rows = governor.readings[1:]
    assert [row.speed for row in governor.readings] == [0.5, 0.0, *[0.5] * 9]
    assert (train.job.account.step, chat.figures(600 * S)["finished"]) == (27, 1)
    assert [drawn_j(one, 600 * S, 1.0) for one in (train, chat)] == [pytest.approx(270.6), pytest.approx(60)]
    # what was read minute by minute is all but the part of the step in progress
    assert sum(row.total_w for row in rows) * 60 == pytest.approx(5 * 600 + 270 + 60)
