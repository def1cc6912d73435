"""Clients that hold the layers below a cut: worked by hand, by a naive loop, and by trying everything."""

import itertools
import json
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from etude.cost.stacks import open_stack
from etude.machine import open_system
from etude.make.generate import Plan
from etude.make.generate.model import open_model
from etude.steps import predict
from etude.surface.cli import main
from etude.world.fleet.federated.cuts import least
from etude.world.fleet.federated.split import Ended, phases_of, split_round
from etude.world.fleet.federated.split_costs import SplitModel, _block, held_by_cut, sides

MODEL = "llama3.2-1b"


class ClientWork(NamedTuple):
    """[client, step], and of each client: bytes of its adapters, whether it needs no server, its rates."""

    forward_s: np.ndarray
    backward_s: np.ndarray
    server_s: np.ndarray
    step_bytes: np.ndarray
    adapter_bytes: np.ndarray
    local: np.ndarray
    up: np.ndarray
    down: np.ndarray

    def round(self, devices: int, limit: float, wanted: int, until_s: float) -> Ended:
        steps = self.forward_s, self.server_s, self.backward_s
        return split_round(phases_of(steps, *self[3:]), devices, limit, wanted, until_s)


def work(forward, backward, server, sent, adapters, local, up, down) -> ClientWork:
    columns = (np.array(one, np.float64) for one in (forward, backward, server, sent, adapters))
    return ClientWork(*columns, np.array(local), np.array(up, np.float64), np.array(down, np.float64))


def naive(given: ClientWork, devices: int) -> tuple[list[float], float, float]:
    """Ends, time of devices in use, time that clients waited: one event after the other."""
    events, queue, free, busy, waited = [], [], devices, 0.0, 0.0
    ends = [0.0] * len(given.up)
    for i in range(len(given.up)):
        heappush(events, (given.adapter_bytes[i] / given.down[i] + given.forward_s[i, 0], 1, i, 0, "up"))
    while events:
        now, _, i, k, what = heappop(events)
        if what == "up" and given.local[i]:
            heappush(events, (now + given.backward_s[i, k], 1, i, k, "stepped"))
        elif what == "up":
            heappush(events, (now + given.step_bytes[i, k] / given.up[i], 1, i, k, "come"))
        elif what == "come":
            queue.append((now, i, k))
        elif what == "served":
            free += 1
            then = now + given.step_bytes[i, k] / given.down[i] + given.backward_s[i, k]
            heappush(events, (then, 1, i, k, "stepped"))
        elif k + 1 < given.forward_s.shape[1]:
            heappush(events, (now + given.forward_s[i, k + 1], 1, i, k + 1, "up"))
        else:
            ends[i] = now + given.adapter_bytes[i] / given.up[i]
        while free and queue:
            came, j, step = queue.pop(0)
            free, waited, busy = free - 1, waited + now - came, busy + given.server_s[j, step]
            heappush(events, (now + given.server_s[j, step], 0, j, step, "served"))
    return ends, busy, waited


@pytest.mark.parametrize("seed", range(20))
def test_the_loop_is_the_naive_one(seed: int):
    rng = np.random.default_rng(seed)
    n, steps, devices = int(rng.integers(1, 7)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    given = work(
        *(rng.uniform(0.1, 2, (n, steps)) for _ in range(3)), rng.uniform(0, 5, (n, steps)), rng.uniform(0, 3, n),
        rng.random(n) < 0.2, rng.uniform(1, 9, n), rng.uniform(1, 9, n),
    )  # fmt: skip
    found = given.round(devices, 0.0, n, np.inf)
    ends, busy, waited = naive(given, devices)
    assert found.end_s == pytest.approx(ends) and found.round_s == pytest.approx(max(ends))
    assert (found.busy_s, found.wait_s) == pytest.approx((busy, waited))
    through = given.step_bytes[~given.local].sum() + given.adapter_bytes.sum()
    assert (found.up_bytes, found.down_bytes) == pytest.approx((through, through))


def test_two_clients_by_hand():
    # adapters 1 s; forward 1; up 2; the server 4, the second waits 4; down 2; backward 1; adapters 1
    two = work([[1], [1]], [[1], [1]], [[4], [4]], [[20], [20]], [10, 10], [False, False], [10, 10], [10, 10])
    found = two.round(1, 0.0, 2, np.inf)
    assert found.end_s.tolist() == [12, 16] and (found.busy_s, found.wait_s) == (8, 4)
    assert two.round(2, 0.0, 2, np.inf).end_s.tolist() == [12, 12]
    # the server's link carries 10 a second for both: adapters 2 s, activations 4 s (7), served until 11 and 15; their
    # ways down do not meet, nor do those up
    shared = two.round(1, 10.0, 2, np.inf)
    assert shared.end_s == pytest.approx([15, 19])
    # the device serves the first from 4 to 8, then the second
    early = two.round(1, 0.0, 2, 9.0)
    assert np.isinf(early.end_s).all() and early.round_s == 9 and early.busy_s == 5
    # both adapters and activations came through; of the gradients of the first, sent from 8 to 10, half did
    assert (early.up_bytes, early.down_bytes) == (40, 30)
    # with the shared link the adapters have 10 a second together: after 1.5 s 15 of 20, and nothing went up
    cut = two.round(1, 10.0, 2, 1.5)
    assert (cut.up_bytes, cut.down_bytes) == pytest.approx((0, 15))
    assert two.round(1, 0.0, 1, np.inf).busy_s == 8
    assert two.round(1, 0.0, 1, np.inf).end_s.tolist() == [12, np.inf]


@pytest.mark.parametrize("seed", range(30))
def test_cuts_are_the_best_of_all(seed: int):
    rng = np.random.default_rng(seed)
    n, cuts, capacity = int(rng.integers(1, 5)), int(rng.integers(2, 6)), float(rng.integers(1, 4))
    own, load = rng.integers(1, 30, (n, cuts)).astype(float), rng.integers(0, 30, (n, cuts)).astype(float)
    fits = rng.random((n, cuts)) < 0.8
    fits[np.arange(n), rng.integers(0, cuts, n)] = True

    def value(choice) -> float:
        rows = list(enumerate(choice))
        return max(max(own[i, c] for i, c in rows), sum(load[i, c] for i, c in rows) / capacity)

    allowed = [c for c in itertools.product(range(cuts), repeat=n) if all(fits[i, k] for i, k in enumerate(c))]
    found = least(own, load, fits, capacity)
    assert all(fits[i, c] for i, c in enumerate(found)) and value(found) == min(map(value, allowed))
    same = least(own[[0] * 3], load[[0] * 3], fits[[0] * 3], capacity)
    assert len(set(same.tolist())) == 1


def test_the_block_of_a_module():
    """The embedding, 16 layers, and the head with all else."""
    modules = ("embedding.tokens", "layers.0.attention.q", "layers.15.mlp.down", "norm", "head", "loss", "layers.x")
    assert [_block(module, 16) for module in modules] == [0, 1, 16, 17, 17, 17, 17]


def test_sides_add_up_to_the_predicted_step():
    model, system = open_model(MODEL), open_system("rtx4090")
    plan = Plan.from_dict({"gpus": 1, "seq": 256, "micro_batch": 1, "global_batch": 1, "train": "lora:16"}, "plan")
    whole = predict(model, plan, system, stack=open_stack("default")).step_time_ns / 1e9
    found = sides(SplitModel(model, 16, 16, 1), system, 256)
    assert found.forward_s + found.backward_s + found.server_s == pytest.approx(np.full(17, whole))
    assert found.server_s[0] == pytest.approx(whole) and found.forward_s[0] == found.backward_s[0] == 0
    assert found.server_s[16] == 0 and (np.diff(found.server_s) < 0).all() and (np.diff(found.forward_s) > 0).all()
    less = sides(SplitModel(model, 16, 4, 1), system, 256)
    assert less.forward_s[8] < found.forward_s[8] and less.server_s.tolist() == found.server_s.tolist()
    assert less.forward_s[16] == found.forward_s[16]
    # a layer: products 2048 x 3072, 2048 x 2048, 2048 x 16384 and 8192 x 2048
    layer = 16 * (2048 + 3072 + 2048 + 2048 + 2048 + 16384 + 8192 + 2048)
    assert held_by_cut(SplitModel(model, 16, 4, 1), 256).adapters[[0, 1, 8, 16]].tolist() == [
        0, layer / 4, 7.25 * layer, 16 * layer
    ]  # fmt: skip


def federate(path: Path, capsys, *more: str) -> dict:
    asked = ["federate", MODEL, "--clients", str(path), "--lora", "16", "--seq", "256", "--rounds", "2", *more]
    assert main([*asked, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    mixed = tmp_path / "c.csv"
    mixed.write_text(
        "name,system,step_s,down,up,memory\na,rtx4090,,1Gb/s,1Gb/s,\nb,t4,,1Gb/s,1Gb/s,2GB\nc,,0.5,1Gb/s,1Gb/s,\n"
    )
    given = ("--steps", "3", "--server-system", "rtx4090")
    eight = federate(mixed, capsys, *given, "--split", "8", "-o", str(tmp_path / "eight"))
    assert eight["split"]["step_bytes"] == 2 * 256 * 2048 * 2 and eight["split"]["cuts"] == {"8": 3}
    assert eight["up_bytes"] == eight["down_bytes"] == 2 * 3 * (3 * 256 * 2048 * 2 + 8 * 606_208 * 2)
    auto = federate(mixed, capsys, *given, "--split", "auto", "-o", str(tmp_path / "auto"))
    assert auto["duration_s"] <= eight["duration_s"] and auto["split"]["cuts"] != {"8": 3}
    none = federate(mixed, capsys, *given, "--split", "0")
    assert none["up_bytes"] == none["down_bytes"] == none["split"]["adapter_bytes"] == 0
    assert none["split"]["load"] == pytest.approx(1)
    assert main(["compare", str(tmp_path / "eight"), str(tmp_path / "auto")]) == 0
    assert main(["query", str(tmp_path / "auto"), "select cut from clients where name = 'b'", "--csv"]) == 0
    assert int(capsys.readouterr().out.split()[-1]) < 16
    assert main(["report", str(tmp_path / "auto"), "-o", str(tmp_path / "p.html")]) == 0
    far = tmp_path / "far.csv"
    far.write_text("system,down,up\n" + "rtx4090,1Mb/s,1Mb/s\nt4,1Mb/s,1Mb/s\njetson-orin,1Mb/s,1Mb/s\n" * 4)
    for seed in ("0", "1"):  # adapters decide: cuts for one round's lengths were 8% slower than one layer for all
        more = ("--steps", "10", "--rounds", "5", "--server-system", "a10", "--lora", "16", "--lora-cut", "4")
        runs = [
            federate(far, capsys, *more, "--lengths", "dirichlet", "--seed", seed, "--split", s) for s in ("auto", "1")
        ]
        assert runs[0]["round_s"]["mean"] <= runs[1]["round_s"]["mean"]
    equal = tmp_path / "e.csv"
    equal.write_text("system,down,up\n" + "t4,1Gb/s,1Gb/s\n" * 4)
    found = federate(equal, capsys, *given, "--split", "auto", "--count", "2")
    assert len(found["split"]["cuts"]) == 1
    mixes = [
        federate(equal, capsys, *given, "--split", "auto", "--count", "2", "--lengths", "dirichlet:0.5")
        for _ in range(2)
    ]
    assert mixes[0] == mixes[1] and mixes[0]["up_bytes"] < found["up_bytes"]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (["--split", "17", "--lora", "16"], "17 of 16 layers"),
        (["--split", "mine", "--lora", "16"], "neither auto nor"),
        (["--split", "8"], "--lora is missing"),
        (["--lora", "16"], "read by `etude federate split`"),
        (["--split", "8", "--lora", "4", "--lora-cut", "8"], "more than --lora"),
        (["--split", "16", "--lora", "16", "--seq", "256"], "`b` has memory for"),
        (["--split", "auto", "--lora", "16", "--lengths", "even"], "unknown method `even`"),
        (["--split", "auto", "--lora", "16", "--share", "swarm"], "--share is not read by `etude federate split`"),
    ],
)
def test_what_is_refused(more: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "c.csv").write_text("name,system,down,up,memory\na,rtx4090,1Gb/s,1Gb/s,\nb,t4,1Gb/s,1Gb/s,2GB\n")
    assert main(["federate", MODEL, "--clients", str(tmp_path / "c.csv"), "--rounds", "1", *more]) == 2
    assert problem in capsys.readouterr().err
