"""Federated rounds whose server is on devices of a machine that fail, worked by hand."""

import numpy as np
import pytest

from etude.surface.cli import main
from etude.world.entities.federated import FederatedWorkload
from etude.world.fleet.federated.clients import alike
from etude.world.fleet.federated.rounds import RoundRules, rounds_of
from etude.world.fleet.federated.split import ClientSplit
from small_worlds import S, faults, machine_of, run, wrong_in

TEN, NAMES = np.full(2, 10.0), ("a", "b")
ONE = np.ones((2, 1))


def federated(machine, *, devices: int, rounds: int, split: bool = False) -> FederatedWorkload:
    """Without a split a round is 1 s down, a step of 1 s, and 1 s up. With one it takes 16 s with one device and 12 s
    with two: both clients need 4 s of one from 4 s on."""
    cut = ClientSplit(
        cut=np.zeros(2, np.int64),
        forward_s=ONE,
        backward_s=ONE,
        server_s=4 * ONE,
        step_bytes=20 * ONE,
        adapter_bytes=TEN,
        mix=ONE,
        tokens=np.ones(1),
        local=np.zeros(2, bool),
        devices=devices,
    )
    rules = RoundRules(model_bytes=10.0, count=2, split=cut if split else None)
    made = rounds_of(alike(NAMES, np.ones(2), TEN, TEN), rules, rounds=rounds)
    its = machine.workloads["rounds"] = FederatedWorkload("rounds", made, machine.devices, wanted=devices)
    its.take(0)
    return its


def seconds(its: FederatedWorkload) -> list[float]:
    return its.tables()["rounds"]["end_s"].to_pylist()


@pytest.mark.parametrize(
    ("nodes", "ends"),
    [
        (1, [3, 10, 13, 16, 19]),  # the second round is lost at 4, and begins again when the node is back at 7
        (2, [3, 7, 10, 13, 16]),  # it begins again on the other node at once
    ],
)
def test_a_round_is_lost_with_its_server(nodes, ends):
    machine = machine_of(nodes, faults((4 * S, 0, 3 * S)))
    its = federated(machine, devices=1, rounds=5)
    run(machine, 30 * S)
    assert seconds(its) == pytest.approx(ends)
    found = its.figures(30 * S)
    assert (found["rounds"], found["lost_rounds"], found["duration_s"]) == (5, 1, pytest.approx(15))
    assert its.done_ns() == ends[-1] * S
    held = 30 - (3 if nodes == 1 else 0)
    assert its.parts_ns(30 * S) == {"busy": 0, "redo": 0, "idle": held * S}
    assert wrong_in(machine, 30 * S) == []


def test_split_clients_go_on_with_the_devices_that_are_left():
    """12 s; the next round is lost after 6 s, in which both devices worked for 2 s. With one device it takes 16 s; the
    other is back after 10, and the round after it has both."""
    machine = machine_of(2, faults((18 * S, 1, 10 * S)))
    its = federated(machine, devices=2, rounds=9, split=True)
    run(machine, 46 * S)
    assert seconds(its) == pytest.approx([12, 34, 46])
    assert its.parts_ns(46 * S) == {"busy": 24 * S, "redo": 4 * S, "idle": (92 - 10 - 28) * S}
    assert its.figures(46 * S)["lost_rounds"] == 1
    assert wrong_in(machine, 46 * S) == []


def test_a_round_in_progress_at_the_horizon_has_used_its_devices():
    machine = machine_of(2, faults())
    its = federated(machine, devices=2, rounds=9, split=True)
    run(machine, 18 * S)
    assert its.parts_ns(18 * S) == {"busy": (8 + 4) * S, "redo": 0, "idle": (36 - 12) * S}


@pytest.mark.parametrize("seed", range(20))
def test_every_round_ends(seed):
    random = np.random.default_rng(seed)
    rows = sorted(
        (int(random.integers(60 * S)), int(random.integers(3)), int(random.integers(1, 30) * S)) for _ in range(8)
    )
    machine = machine_of(3, faults(*rows))
    its = federated(machine, devices=int(random.integers(1, 3)), rounds=6, split=bool(seed % 2))
    run(machine, 1000 * S)
    ends = np.array(seconds(its))
    assert len(ends) == 6 and (np.diff(ends) > 2.99).all() and wrong_in(machine, 1000 * S) == []


def test_who_does_not_feel_faults_is_said(tmp_path, capsys):
    rounds = "federate: gpt2, clients: 2, link: 100Mb/s"
    machine = "machine: {system: dgx-h100, nodes: 1}\nhorizon: 10min\nevents: {faults: 'node:at=5s,repair=10s'}\n"
    for more, said in (
        ("", "its server has no device of the machine: faults are not felt (server_devices: 1)"),
        (", share: swarm", "a swarm has no server: faults are not felt"),
        (", server_devices: 1", ""),
        (", rounds: 60, lora: 4", ""),
    ):
        (tmp_path / "one.yaml").write_text(f"{machine}workloads:\n  rounds: {{{rounds}{more}}}\n")
        assert main(["world", "run", str(tmp_path / "one.yaml")]) == 0
        out = capsys.readouterr()
        assert (said in out.err) if said else "not felt" not in out.err
        assert ("1 begun again" in out.out) == (not said)
    (tmp_path / "bad.yaml").write_text(f"{machine}workloads:\n  rounds: {{{rounds}, server_devices: two}}\n")
    assert main(["world", "run", str(tmp_path / "bad.yaml")]) == 2
    assert "server_devices: 'two'" in capsys.readouterr().err
