"""A machine in several regions: what is there, what it costs, and what cannot be."""

import json

import numpy as np
import pytest

from etude.surface.cli import main
from etude.world.clock import Event
from etude.world.devices import DOWN, FREE, DevicePool
from etude.world.entities.machine import OFFER, SharedMachine
from etude.world.policies import policy
from etude.world.prices import read_prices
from small_worlds import Borrower, S, faults, run, tier, training, wrong_in

TWO = np.array([0, 0, 0, 1, 1, 1])


def machine_in(region: np.ndarray, *rows: tuple[int, int, int], per_node: int = 1) -> SharedMachine:
    devices = DevicePool(len(region), per_node, policy("place", "pack"), region=region)
    return SharedMachine(devices, faults(*rows), policy("share", "lend"))


def regional(machine: SharedMachine, who: str, horizon: int) -> list[int]:
    """Device seconds by region."""
    pool = machine.devices
    return [
        sum(
            row.devices * (min(end, horizon) - min(row.time_ns, horizon))
            for row, end in zip(its, [*(one.time_ns for one in its[1:]), horizon], strict=False)
        )
        // S
        for its in (history.get(who, []) for history in pool.regional)
    ]


def test_whole_nodes_are_in_one_region_and_seats_anywhere():
    pool = DevicePool(6, 2, policy("place", "spread"), region=TWO)
    assert pool.take_nodes("a", 2, 0) == [0, 1]
    assert pool.take_nodes("b", 2, 0) == [3, 4]  # one node is left in the first region
    assert pool.take_nodes("a", 2, 5) == [2] and pool.take_nodes("a", 1, 5) == []
    pool.region_of["c"] = 0
    assert pool.take_seat("c", 1, 5) is None and pool.take_seat("d", 1, 5).node == 5
    assert not pool.meet("a", "b") and pool.meet("a", "c") and pool.meet("a", "d")
    assert [its[FREE][-1].devices for its in pool.regional] == [0, 1]


def test_a_node_is_replaced_by_one_of_its_region():
    """A job has four of five nodes. The fifth takes the place of the first that fails, and the sixth, which is
    elsewhere, not that of the second."""
    region = np.array([0, 0, 0, 0, 0, 1])
    machine = machine_in(region, (130 * S, 1, 2000 * S), (300 * S, 2, 200 * S))
    train = training(machine, tier())
    run(machine, 1000 * S)
    assert regional(machine, "train", 1000 * S) == [4 * 1000 - 200, 0]
    assert regional(machine, DOWN, 1000 * S) == [870 + 200, 0]
    assert regional(machine, FREE, 1000 * S) == [130, 1000]
    assert train.job.interruptions == 2 and wrong_in(machine, 1000 * S) == []


@pytest.mark.parametrize(("region", "got"), [(0, 200 * S), (1, None)])
def test_only_nodes_of_the_same_region_are_lent(region, got):
    machine = machine_in(np.array([0, 0, 0, 0, 1]))
    train = training(machine, recover="shrink", lend_to="borrower", replicated=True)
    other = machine.devices.take_nodes("other", 1, 0)
    assert other == [4]
    borrower = Borrower(machine, 200 * S, 400 * S)
    machine.devices.region_of["borrower"] = region
    run(machine, 1000 * S)
    assert (borrower.got_ns == got) if got else not borrower.has
    assert machine.devices.device_ns("borrower", 1000 * S) == (200 * S if got else 0)
    assert train.job.interruptions == 0


def test_who_lends_is_offered_nodes_that_nobody_else_there_wants():
    machine = machine_in(np.array([0, 0, 0, 0, 1]))
    train = training(machine, recover="shrink", lend_to="borrower", replicated=True)
    borrower = Borrower(machine, 100 * S, 400 * S, nodes=2)
    machine.devices.region_of["borrower"] = 1
    borrower.missing, train.lent = 2, 1
    train.job.up[0] = False
    assert [one.to for one in machine.on(Event(0, "given", "machine"))] == ["borrower", "train"]
    machine.devices.region_of["borrower"] = 0
    assert [(one.to, one.kind) for one in machine.on(Event(0, "given", "machine"))] == [("borrower", OFFER)]


# -- scenarios ---------------------------------------------------------------------------------------------------------

CHAT = "{serve: gpt2, rate: 40, count: 400, burst: 0, seed: 1%s}"
WORLD = """machine: {system: dgx-h100, nodes: 5, regions: [%s]}
horizon: 1h
workloads:
  train: {train: gpt2, gpus: 16, checkpoint: ["remote:10min"], region: poland}
  chat: %s
events: {prices: spot.csv}
"""


def ran(folder, text, capsys) -> dict:
    (folder / "one.yaml").write_text(text)
    assert main(["world", "run", str(folder / "one.yaml"), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_prices_and_emissions_are_those_of_the_region(tmp_path, capsys):
    """Two nodes in Sweden, three in Poland, of which training has two. Devices cost 1 dollar for half an hour and then
    2 in Sweden, 4 in Poland. A kWh of a device is 1.15 x 41 g in Sweden and 1.3 x 660 g in Poland."""
    (tmp_path / "spot.csv").write_text("time_s,sweden,poland\n0,1,4\n1800,2,4\n")
    found = ran(tmp_path, WORLD % ("sweden:2, poland:3", CHAT % ", region: sweden"), capsys)["account"]
    hour = 3_600_000_000_000
    assert found["device_ns"]["regions"] == {
        "sweden": {"free": 15 * hour, "down": 0, "chat": hour},
        "poland": {"free": 8 * hour, "down": 0, "train": 16 * hour},
    }
    cost, energy, carbon = found["cost"], found["energy_mj"], found["carbon_g"]
    assert cost["parts"]["train"] == pytest.approx(16 * 4) and cost["parts"]["chat"] == pytest.approx(1.5)
    assert cost["parts"]["free"] == pytest.approx(15 * 1.5 + 8 * 4)
    assert cost["regions"] == {"sweden": pytest.approx(24), "poland": pytest.approx(96)}
    train, chat = (sum(energy["parts"][who].values()) for who in ("train", "chat"))
    idle = {name: energy["regions"][name] - its for name, its in (("sweden", chat), ("poland", train))}
    assert sum(energy["regions"].values()) == energy["total"]
    assert idle["sweden"] / idle["poland"] == pytest.approx(15 / 8, rel=1e-6)
    assert carbon["parts"]["train"] == pytest.approx(train / 3.6e9 * 1.3 * 660)
    assert carbon["parts"]["chat"] == pytest.approx(chat / 3.6e9 * 1.15 * 41)
    assert (
        sum(carbon["regions"].values())
        == pytest.approx(sum(carbon["parts"].values()))
        == pytest.approx(carbon["total"])
    )
    (tmp_path / "spot.csv").write_text("time_s,price\n0,3\n")
    both = ran(tmp_path, WORLD % ("sweden, poland", CHAT % ""), capsys)["account"]
    assert both["cost"]["total"] == pytest.approx(40 * 3)
    assert both["device_ns"]["regions"]["poland"]["train"] == 16 * hour  # the two nodes there


def test_where_workloads_are_is_said_or_assumed(tmp_path, capsys):
    (tmp_path / "spot.csv").write_text("time_s,price\n0,3\n")
    text = (WORLD % ("sweden:3, poland:2", CHAT % "")).replace(", region: poland", "")
    (tmp_path / "one.yaml").write_text(text)
    assert main(["world", "run", str(tmp_path / "one.yaml")]) == 0
    out = capsys.readouterr()
    assert "train: assumed: in sweden, the first region with enough free nodes" in out.err
    assert "chat: assumed: its requests come from the region of the replica" in out.err
    assert "in sweden, poland" in out.out


def test_answers_come_later_by_the_round_trip(tmp_path, capsys):
    (tmp_path / "spot.csv").write_text("time_s,price\n0,3\n")
    near, far = (
        ran(tmp_path, WORLD % ("sweden:3, poland:2", CHAT % f", region: sweden{more}"), capsys)["workloads"]["chat"]
        for more in ("", ", round_trip: 80ms")
    )
    for name in ("ttft_s", "latency_s"):
        assert far[name]["mean"] - near[name]["mean"] == pytest.approx(0.08)
    assert far["tpot_s"] == pytest.approx(near["tpot_s"]) and far["output_tokens_per_s"] < near["output_tokens_per_s"]


@pytest.mark.parametrize(
    ("regions", "more", "said"),
    [
        ("sweden:3, poland:3", "", "are not parts of 5 nodes"),
        ("sweden:3, poland", "", "are not parts of 5 nodes"),
        ("sweden:2, poland:x", "", "regions: poland:x"),
        ("poland, poland", "", "named twice"),
        ("poland, atlantis", "", "unknown region `atlantis`"),
        ("poland", "", "the machine is in one place"),
        ("sweden, poland", ", region: texas", "the machine has no `texas`"),
        ("poland:4, sweden:1", ", region: sweden, tp: 4, replicas: 3", "have room"),
        ("sweden, poland", ", disaggregate: '1:1'", "prompts and answers apart in several regions"),
        ("sweden, poland", ", round_trip: 80ms", "a round trip in several regions"),
        ("sweden, poland", ", region: sweden, round_trip: soon", "round_trip"),
    ],
)
def test_what_cannot_be_in_several_regions_is_refused(tmp_path, capsys, regions, more, said):
    (tmp_path / "spot.csv").write_text("time_s,price\n0,3\n")
    (tmp_path / "one.yaml").write_text(WORLD % (regions, CHAT % more))
    assert main(["world", "run", str(tmp_path / "one.yaml")]) == 2
    assert said in capsys.readouterr().err


def test_a_shared_store_is_in_one_region(tmp_path, capsys):
    row = {"arrival": 0, "segments": [["rules", 200]], "output": 5}
    (tmp_path / "shared.jsonl").write_text(json.dumps(row) + "\n")
    chat = "{serve: gpt2, requests: shared.jsonl, cache: 'prefix remote=1GB@1GB/s shared'%s}"
    text = "machine: {system: dgx-h100, nodes: 2, regions: [sweden, poland]}\nworkloads:\n  chat: "
    for more, code in (("", 2), (", region: poland", 0)):
        (tmp_path / "one.yaml").write_text(text + chat % more + "\n")
        assert main(["world", "run", str(tmp_path / "one.yaml")]) == code
        assert ("a store that replicas share" in capsys.readouterr().err) == bool(code)


def test_a_workload_without_devices_is_nowhere(tmp_path, capsys):
    text = "machine: {system: dgx-h100, nodes: 2, regions: [sweden, poland]}\nworkloads:\n"
    rounds = "  rounds: {federate: gpt2, clients: 2, link: 1Gb/s, rounds: 2, region: sweden}\n"
    (tmp_path / "one.yaml").write_text(text + rounds)
    assert main(["world", "run", str(tmp_path / "one.yaml")]) == 2
    assert "region: it has no devices" in capsys.readouterr().err
    (tmp_path / "one.yaml").write_text(text + rounds.replace("region: sweden", "server_devices: 1"))
    assert main(["world", "run", str(tmp_path / "one.yaml")]) == 2
    assert "a server in several regions" in capsys.readouterr().err


def test_prices_name_every_region(tmp_path):
    path = tmp_path / "spot.csv"
    path.write_text("time_s,a,b\n0,1,2\n")
    assert [one.price.tolist() for one in read_prices(str(path), ["b", "a"])] == [[2.0], [1.0]]
    path.write_text("time_s,price\n0,1\n")
    assert len(read_prices(str(path), ["b", "a"])) == 2
