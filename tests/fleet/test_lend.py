"""Rollouts on devices that serve: nothing lent is two runs, idle devices are lent whole, and lending is felt."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.world.fleet.rl import beside, read_borrow, read_rl, rl_record
from etude.world.fleet.rl.lend import Borrow, Lender
from etude.world.fleet.sharing import read_pool

STREAM = {
    "name": "chat", "nodes": "serving", "model": "llama3-8b", "system": "dgx-h100", "rate": 12, "count": 240,
    "output": 64, "burst": 3, "slo": {"ttft": "300ms", "tpot": "11ms"},
}  # fmt: skip
RL = {
    "steps": 3, "train": {"nodes": "own", "time": "3s"},
    "rollout": {"nodes": ["own", "borrowed"], "samples": 64, "tokens": 200, "at_once": 4, "step_ns": "8ms"},
}  # fmt: skip


def pool(tmp_path: Path, name: str, how: str, rl: dict[str, Any] = RL, **stream: Any) -> Path:
    path = tmp_path / f"{name}.yaml"
    given = {
        "nodes": [{"name": "own", "gpus": 2}, {"name": "serving", "gpus": 2}], "rl": rl,
        "streams": [STREAM | stream], "borrow": {"stream": "chat", "how": how, "calm": "500ms", "every": "100ms"},
    }  # fmt: skip
    path.write_text(json.dumps(given))
    return path


def said(path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(["fleet", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_lent_is_felt_and_nothing_lent_is_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    none, fixed, guarded = (said(pool(tmp_path, how, how), capsys) for how in ("none", "fixed", "guarded"))
    # the stream by itself, to the last digit
    asked = [
        "serve",
        "llama3-8b",
        "--system",
        "dgx-h100",
        "--replicas",
        "2",
        "--rate",
        "12",
        "--count",
        "240",
        "--output",
        "64",
        "--burst",
        "3",
    ]
    assert main([*asked, "--slo", "ttft=300ms,tpot=11ms", "--json"]) == 0
    served = json.loads(capsys.readouterr().out)
    for key in ("latency_s", "ttft_s", "tpot_s", "within_limits"):
        assert none["streams"]["chat"][key] == served[key]
    # rollouts by themselves
    alone = RL | {"rollout": RL["rollout"] | {"nodes": ["own"]}}  # type: ignore[operator]
    own = pool(tmp_path, "alone", "none", alone)
    own.write_text(json.dumps({k: v for k, v in json.loads(own.read_text()).items() if k not in ("streams", "borrow")}))
    assert said(own, capsys)["duration_s"] == none["duration_s"]
    # device seconds, those that were lent among them
    for one in (none, fixed, guarded):
        parts = one["device_s"]
        assert sum(parts[key] for key in ("useful", "redone", "set_up", "idle")) == pytest.approx(parts["there"])
        assert one["tokens"] == 3 * 64 * 200 and one["samples"] == 3 * 64
    assert none["device_s"]["lent"] == 0 < guarded["device_s"]["lent"]
    # kernels of lent devices take twice as long, and the guard keeps the limits that `fixed` breaks
    assert fixed["streams"]["chat"]["tpot_s"]["mean"] > 1.3 * none["streams"]["chat"]["tpot_s"]["mean"]
    kept = {name: one["streams"]["chat"]["within_limits"] for name, one in
            (("none", none), ("fixed", fixed), ("guarded", guarded))}  # fmt: skip
    assert kept["fixed"] < 0.9 and kept["guarded"] > kept["none"] - 0.01
    assert guarded["duration_s"] < none["duration_s"]


def test_idle_devices_are_lent_whole(tmp_path: Path):
    path = pool(tmp_path, "idle", "guarded", rate=0.001, count=1)  # one request, at the start
    given = read_pool(path)
    assert given.rl is not None
    spec, borrow = read_rl(given.rl, "p"), read_borrow(given.borrow, given.streams, "p")
    ran, tables = beside(given.cluster, spec, given.streams, borrow, "p")
    lent = tables["lent"].to_pylist()
    assert lent[-1] == {"time_s": pytest.approx(lent[-1]["time_s"]), "devices": 2.0, "requests": 0}
    # four replicas of equal speed in place of two: 64 samples, 16 at a time: 4 rounds of 1.6 s
    steps = [one for one in ran.loop.stretches if one.stage == "rollout"]
    assert (steps[-1].end_ns - steps[-1].start_ns) / 1e9 == pytest.approx(4 * 1.6)
    assert rl_record(ran)["receivers"] == 4


class Seen:
    def __init__(self, running: int, waiting: int) -> None:
        self.running, self.waiting = running, waiting


def test_the_guard_by_hand(tmp_path: Path):
    given = read_pool(pool(tmp_path, "guard", "guarded"))
    borrow = Borrow(stream="chat", share=0.25, calm_ns=2 * 10**9)
    lender = Lender.__new__(Lender)
    lender.borrow, lender.stream, lender.most, lender.calm_since = borrow, given.streams[0], 3, [-borrow.calm_ns] * 2
    at = lambda running, waiting, second: lender._speed(0, Seen(running, waiting), second * 10**9)  # noqa: E731
    assert [at(0, 0, 0), at(3, 0, 1), at(4, 0, 2), at(1, 0, 3), at(1, 0, 4), at(0, 1, 5)] == [1, 0.25, 0, 0, 0.25, 0]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"borrow": {"stream": "chats"}}, "there is no stream `chats`"),
        ({"borrow": {"stream": "chat", "share": 1}}, "must keep a share"),
        ({"borrow": {"stream": "chat", "how": "much"}}, "unknown value"),
        ({"streams": [STREAM | {"tp": 4}]}, "have room for 0 replicas"),
        ({"streams": [STREAM | {"rate": 0}]}, "no requests are given"),
        ({"rl": RL | {"rollout": {"nodes": ["own"], "step_ns": "8ms"}}}, "not among them"),
    ],
)
def test_what_cannot_be_lent_is_refused(change: dict[str, Any], why: str, tmp_path: Path):
    path = pool(tmp_path, "bad", "guarded")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UsageError, match=why):
        given = read_pool(path)
        assert given.rl is not None
        borrow = read_borrow(given.borrow, given.streams, "p")
        beside(given.cluster, read_rl(given.rl, "p"), given.streams, borrow, "p")


def test_slowed_costs_are_slower_where_the_device_is_the_limit():
    from etude.world.serve.curves import decode_curve, slowed
    from etude.world.serve.steps import step_cost

    cost = step_cost(tokens=[1, 64], layers_ns=[1000.0, 2000.0], floor_ns=(1500.0, 1500.0, 1500.0))
    assert decode_curve(cost, 2, 10)[1] == 1500  # the host
    assert np.allclose(decode_curve(slowed(cost, 2.0), 64, 10)[[1, 64]], [2000, 4000])
