"""Post-training by reinforcement: closed forms worked by hand, a naive twin, and what is conserved."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.world.fleet.rl import read_rl, rl_record, rl_tables, run_rl
from etude.world.fleet.rl.beside_jobs import held_until
from etude.world.fleet.rl.lend import Borrow, LendMethod
from etude.world.fleet.sharing import read_pool

NODES = "nodes: [{name: own, gpus: 4, price: 3.6}, {name: spot, count: 4, gpus: 1, price: 0.9, capacity: spot.csv}]\n"
PLAIN = {"nodes": ["own"], "samples": 8, "tokens": 100, "at_once": 2, "step_ns": "10ms"}


def ran(tmp_path: Path, *, seed: int = 0, spot: str = "time_s,devices\n0,4\n", **rl: Any) -> dict[str, Any]:
    (tmp_path / "p.yaml").write_text(NODES + f"rl: {json.dumps(rl)}\n")
    (tmp_path / "spot.csv").write_text(spot)
    pool = read_pool(tmp_path / "p.yaml")
    assert pool.rl is not None
    found = run_rl(pool.cluster, read_rl(pool.rl, pool.path), pool.path, seed=seed)
    record = rl_record(found)
    parts = record["device_s"]
    assert sum(parts[name] for name in ("useful", "redone", "set_up", "idle")) == pytest.approx(parts["there"])
    made = sum(replica.steps_made for replica in found.loop.replicas)
    assert made == pytest.approx(record["tokens"] + record["lost_tokens"])
    return record | {"tables": rl_tables(found, record)}


def test_a_step_on_policy_is_the_sum_of_its_stages(tmp_path: Path):
    # 8 samples on 4 replicas, two at a time: 100 steps of 10 ms; the environment 2 s; the update 5 s
    said = ran(tmp_path, steps=3, rollout=PLAIN, environment={"time": "2s"}, train={"nodes": "own", "time": "5s"})
    assert said["duration_s"] == pytest.approx(3 * (1 + 2 + 5)) and said["staleness"] == 0
    assert (said["rollout_s"], said["train_s"], said["explore_s"]) == pytest.approx((1 + 2, 5, 0))
    assert said["device_s"]["make"] == pytest.approx(3 * 4) and said["device_s"]["train"] == pytest.approx(3 * 4 * 5)
    assert said["cost"] == pytest.approx(24 * (4 * 0.001))  # the nodes that it uses, and no others
    # samples that do not fit at once wait for a place: three rounds of two
    more = PLAIN | {"samples": 24}
    assert ran(tmp_path, steps=1, rollout=more, train={"nodes": "own", "time": "5s"})["duration_s"] == pytest.approx(8)


def test_devices_that_are_too_few_for_a_replica_are_idle(tmp_path: Path):
    """One replica of three of four devices: 100 steps for two samples at a time, four times; then an update of 5 s."""
    said = ran(tmp_path, steps=1, rollout=PLAIN | {"tp": 3}, train={"nodes": "own", "time": "5s"})
    assert said["duration_s"] == pytest.approx(4 + 5)
    assert said["device_s"]["there"] == pytest.approx(4 * 9) and said["device_s"]["make"] == pytest.approx(3 * 4)
    assert said["device_s"]["idle"] == pytest.approx(4 * 9 - 3 * 4 - said["device_s"]["train"])


def test_turns_are_each_answered(tmp_path: Path):
    three = PLAIN | {"turns": 3}
    said = ran(tmp_path, steps=2, rollout=three, environment={"time": "2s"}, train={"nodes": "own", "time": "5s"})
    assert said["duration_s"] == pytest.approx(2 * (3 * (1 + 2) + 5)) and said["tokens"] == 2 * 8 * 3 * 100


def test_fuller_steps_take_longer(tmp_path: Path):
    # two samples at a time: 15 ms a step; the longer goes on alone at 10 ms: drawn lengths by hand
    spread = {"nodes": ["own"], "samples": 2, "tokens": 100, "spread": 0.5, "at_once": 2, "tp": 4,
              "step_ns": {"1": "10ms", "2": "15ms"}}  # fmt: skip
    said = ran(tmp_path, steps=1, rollout=spread, train={"nodes": "own", "time": "1s"}, seed=3)
    drawn = np.random.default_rng((3, 1_000_003, 0, 0, False)).lognormal(-0.125, 0.5, (2, 1))
    short, long = sorted(np.maximum(np.round(100 * drawn), 1).ravel().tolist())
    assert said["duration_s"] == pytest.approx(1 + short * 0.015 + (long - short) * 0.010)


@pytest.mark.parametrize("tenants", [1, 3])
def test_one_tenant_on_policy_gains_nothing_from_stages_apart(tenants: int, tmp_path: Path):
    given: dict[str, Any] = {
        "steps": 3, "tenants": tenants, "rollout": PLAIN | {"turns": 3, "spread": 0.4},
        "environment": {"time": "2s", "spread": 0.5}, "train": {"nodes": "own", "time": "2s"},
    }  # fmt: skip
    together, apart = (ran(tmp_path, **given, stages=stages) for stages in ("together", "apart"))
    assert together["tokens"] == apart["tokens"] and together["samples"] == apart["samples"]
    if tenants == 1:
        assert together["duration_s"] == apart["duration_s"]
    else:
        assert apart["duration_s"] < 0.8 * together["duration_s"]


def test_stale_rollouts_hide_the_shorter_of_two_stages(tmp_path: Path):
    # apart on nodes of their own: rollout 3 s, update 5 s: 3 + 5 a step on policy, then 5 a step
    rollout = PLAIN | {"nodes": ["spot"]}
    given: dict[str, Any] = {"rollout": rollout, "environment": {"time": "2s"}, "train": {"nodes": "own", "time": "5s"}}
    assert ran(tmp_path, steps=10, **given)["duration_s"] == pytest.approx(80)
    for staleness in (1, 2):
        said = ran(tmp_path, steps=10, staleness=staleness, **given)
        assert said["duration_s"] == pytest.approx(3 + 10 * 5) and said["staleness"] == staleness
    # and no rollout has weights that lack more
    stages = said["tables"]["stages"].to_pylist()
    ends = {one["step"]: one["end_s"] for one in stages if one["stage"] == "train"}
    for one in stages:
        if one["stage"] == "rollout" and one["step"] >= 2:
            assert ends[one["step"] - 2 - 1] <= one["start_s"] if one["step"] > 2 else True


def test_exploring_with_stale_weights_hides_behind_the_update(tmp_path: Path):
    explore = {"nodes": ["spot"], "samples": 16, "tokens": 100, "at_once": 1, "step_ns": "10ms"}  # 4 s
    given: dict[str, Any] = {"steps": 5, "rollout": PLAIN, "train": {"nodes": "own", "time": "5s"}}
    serial = ran(tmp_path, **given, explore=explore)
    stale = ran(tmp_path, **given, explore=explore | {"when": "stale"})
    assert serial["duration_s"] == pytest.approx(5 * (4 + 1 + 5))
    assert stale["duration_s"] == pytest.approx(4 + 5 * (1 + 5))  # the first has nothing to hide behind
    long = ran(tmp_path, **given, explore=explore | {"when": "stale", "samples": 32})
    assert long["duration_s"] == pytest.approx(8 + 1 + 4 * (8 + 1) + 5)
    assert stale["cost"] == pytest.approx(34 * (4 * 0.001 + 4 * 0.00025))


def test_nodes_that_go_take_their_turns_with_them(tmp_path: Path):
    # 8 samples, one at a time on 4 devices, 4 s each; at 6 s two go and 2 s of two samples are lost; 1 s to regroup
    rollout = {"nodes": ["spot"], "samples": 8, "tokens": 400, "at_once": 1, "step_ns": "10ms"}
    given: dict[str, Any] = {"steps": 1, "rollout": rollout, "train": {"nodes": "own", "time": "5s"}}
    said = ran(tmp_path, **given, regroup="1s", spot="time_s,devices\n0,4\n6,2\n")
    # the two others end at 9 s, and then the two that were lost at 13 s
    assert said["duration_s"] == pytest.approx(13 + 5) and said["lost_tokens"] == pytest.approx(2 * 200)
    assert said["samples"] == 8 and said["tokens"] == 3200
    assert said["device_s"]["set_up"] == pytest.approx(2) and said["device_s"]["redone"] == pytest.approx(4)
    with pytest.raises(UsageError, match="no devices are left"):
        ran(tmp_path, **given, spot="time_s,devices\n0,4\n6,0\n")


def test_samples_of_a_node_that_goes_are_elsewhere_at_that_instant(tmp_path: Path):
    # 4 samples on 4 devices; at 2 s two go, and theirs begin again beside the others: 4 s more, to the nanosecond
    rollout = {"nodes": ["spot"], "samples": 4, "tokens": 400, "at_once": 2, "step_ns": "10ms"}
    given: dict[str, Any] = {"steps": 1, "rollout": rollout, "train": {"nodes": "own", "time": "5s"}}
    assert ran(tmp_path, **given, spot="time_s,devices\n0,4\n2,2\n")["duration_s"] == 2 + 4 + 5


def test_what_is_not_done_by_the_horizon_is_refused(tmp_path: Path):
    given = {"steps": 2, "rollout": PLAIN, "train": {"nodes": "own", "time": "5s"}}  # 12 s
    path = tmp_path / "pool.yaml"
    path.write_text(f"{NODES}rl: {json.dumps(given)}\n")
    (tmp_path / "spot.csv").write_text("time_s,devices\n0,4\n")
    pool = read_pool(path)
    assert pool.rl is not None
    spec = read_rl(pool.rl, pool.path)
    assert run_rl(pool.cluster, spec, pool.path, horizon_ns=12 * 10**9).loop.end_ns == 12 * 10**9
    with pytest.raises(UsageError, match="not done after 11 s"):
        run_rl(pool.cluster, spec, pool.path, horizon_ns=11 * 10**9)


def test_weights_are_sent_in_part(tmp_path: Path):
    sync = {"link": "1GB/s", "fraction": 0.1, "index_bytes": 4, "value_bytes": 2, "weights": "10GB"}
    said = ran(tmp_path, steps=2, rollout=PLAIN, train={"nodes": "own", "time": "5s"}, sync=sync)
    # a tenth of the values, each with an index twice as long, to four replicas over one link
    assert said["sync_bytes"] == pytest.approx(10e9 * 0.1 * 3 * 4)
    assert said["duration_s"] == pytest.approx(2 * (1 + 5 + 12))
    whole = ran(tmp_path, steps=1, rollout=PLAIN, train={"nodes": "own", "time": "5s"}, sync={"weights": "10GB"})
    assert whole["sync_bytes"] == 4 * 10e9


def test_times_and_weights_of_a_model(tmp_path: Path):
    given: dict[str, Any] = {
        "steps": 1, "model": "qwen3-0.6b", "system": "dgx-h100", "lora": 16,
        "rollout": {"nodes": ["own"], "samples": 8, "tokens": 50, "at_once": 4},
        "train": {"nodes": "own", "plan": {"gpus": 4, "global_batch": 8, "seq": 1024}},
    }  # fmt: skip
    one, four = (ran(tmp_path, **given, tenants=k) for k in (1, 4))
    adapter = (four["weights_bytes"] - one["weights_bytes"]) / 3
    assert 0 < adapter < 0.1 * one["weights_bytes"] and one["weights_bytes"] > 1e9  # the model counts once
    assert one["rollout_s"] > 50 * 0.0005 and one["train_s"] > 0


def test_the_command_and_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    example = Path(__file__).parents[2] / "examples" / "rl.yaml"
    assert main(["fleet", str(example), "--json", "-o", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["useful_s"] + sum(found["lost_s"].values()) == pytest.approx(found["duration_s"])
    assert len(found["jobs"]) == 2 and found["updates"] == 12
    assert (
        main(["query", str(tmp_path / "out"), "select count(*) as n from stages where stage = 'train'", "--csv"]) == 0
    )
    assert capsys.readouterr().out.split() == ["n", "12"]
    assert main(["report", str(tmp_path / "out"), "-o", str(tmp_path / "page.html")]) == 0
    assert "12 updates of 2 tenants" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rollout": PLAIN | {"nodes": ["moon"]}}, "there are no nodes `moon`"),
        ({"train": {"nodes": "spot", "time": "1s"}}, "may be reclaimed"),
        ({"stages": "together", "staleness": 1}, "on-policy"),
        ({"stages": "sideways"}, "unknown value"),
        ({"rollout": PLAIN | {"tp": 5}}, "fewer than a replica needs"),
        ({"rollout": {"nodes": ["own"]}}, "no times are given"),
        ({"train": {"nodes": "own"}}, "no time is given"),
        ({"steps": -1}, "not positive"),
        ({"luck": 1}, "unknown key `luck`"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], said: str, tmp_path: Path):
    with pytest.raises(UsageError, match=said):
        ran(tmp_path, **({"steps": 1, "rollout": PLAIN, "train": {"nodes": "own", "time": "5s"}} | change))


def test_nodes_of_a_stream_that_lends_are_held_until_both_are_done():
    """The last update is at 10 s. Requests of `chat` end at 4 s, those of `more` at 3 s; `chat` lends its devices."""
    spec = read_rl({"rollout": PLAIN, "train": {"nodes": "own", "time": "1s"}}, "p")
    streams: Any = [SimpleNamespace(name="chat", nodes="a"), SimpleNamespace(name="more", nodes="b")]
    served = {"chat": {"duration_s": 4.0}, "more": {"duration_s": 3.0}}
    found = held_until(spec, 10.0, streams, served, Borrow(stream="chat"))
    assert found == {"own": 10 * 10**9, "a": 10 * 10**9, "b": 3 * 10**9}
    found = held_until(spec, 10.0, streams, served, Borrow(stream="chat", how=LendMethod.NONE))
    assert found == {"own": 10 * 10**9, "a": 4 * 10**9, "b": 3 * 10**9}
