"""Federated rounds, worked by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.world.fleet.federated import Swarm, federate, read_clients
from etude.world.fleet.federated.clients import alike
from etude.world.fleet.federated.links import finished, moved_by
from etude.world.fleet.federated.presence import GroupPresence, two_states
from etude.world.fleet.federated.shares import trained
from etude.world.fleet.federated.swarm import spread

HEAD = "name,step_s,down,up,available,drops,samples,share"


def clients(tmp_path: Path, *rows: str):
    (tmp_path / "c.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    return read_clients(tmp_path / "c.csv")


def test_all_alike_is_the_closed_form(tmp_path: Path):
    # 100 MB down in 10 s, 3 steps of 2 s, up in 20 s
    found = federate(clients(tmp_path, *["a,2,10MB/s,5MB/s,,,,"] * 4), model_bytes=1e8, rounds=7, count=4, steps=3)
    assert found.round_s.tolist() == [36.0] * 7
    assert found.column("up_bytes").sum() == found.column("down_bytes").sum() == 7 * 4 * 1e8
    assert found.taken.tolist() == [7] * 4


def test_the_slowest_decides_unless_a_deadline_or_a_quorum_does(tmp_path: Path):
    who = clients(
        tmp_path, "fast,1,100MB/s,100MB/s,,,,", "slow,30,100MB/s,100MB/s,,,,", "half,9,100MB/s,100MB/s,,,,0.5"
    )
    given = {"model_bytes": 1e8, "rounds": 2, "count": 3}
    assert federate(who, **given).round_s.tolist() == [32.0] * 2
    cut = federate(who, **given, deadline_s=10.0)
    assert cut.round_s.tolist() == [10.0] * 2 and cut.taken.tolist() == [2, 0, 2]
    # half of the weights: all of them down, two and a half of three products, half of them up: 1 + 7.5 + 0.5
    assert federate(who, **given, quorum=2).round_s.tolist() == [9.0] * 2


def test_the_servers_link_is_shared(tmp_path: Path):
    # 10 and 30 MB/s of a limit of 20: 10 each; at 10 s both have 100 MB
    assert finished(np.full(2, 1e8), np.array([1e7, 3e7]), np.zeros(2), 2e7).tolist() == [10.0, 10.0]
    # the second begins at 2.5 s, when the first has 50 MB: 10 MB/s each until 7.5; then 50 MB at 20
    assert finished(np.full(2, 1e8), np.array([2e7, 2e7]), np.array([0.0, 2.5]), 2e7) == pytest.approx([7.5, 10.0])
    who = clients(tmp_path, *["a,2,10MB/s,10MB/s,,,,"] * 8)
    found = federate(who, model_bytes=1e8, rounds=3, count=8, server_bytes_per_s=4e7)
    assert found.round_s.tolist() == pytest.approx([20 + 2 + 20] * 3)  # k W / B each way


def test_no_byte_is_counted_that_was_not_sent(tmp_path: Path):
    # 100 MB to each, at 10 and at 40 MB/s, and the round is over after 5 s: 50 MB and all; nobody has an answer by then
    who = clients(tmp_path, "slow,1,10MB/s,10MB/s,,,,", "fast,9,40MB/s,10MB/s,,,,")
    cut = federate(who, model_bytes=1e8, rounds=2, count=2, deadline_s=5.0)
    assert cut.column("answered").tolist() == [0, 0]
    assert cut.column("down_bytes").tolist() == [1.5e8] * 2 and cut.column("up_bytes").tolist() == [0.0] * 2
    # a millisecond moves 10 and 40 kB
    assert federate(who, model_bytes=1e8, rounds=1, count=2, deadline_s=1e-3).column("down_bytes") == pytest.approx(5e4)
    # the server's 20 MB/s are 10 for each: 100 MB in 5 s
    shared = federate(who, model_bytes=1e8, rounds=1, count=2, deadline_s=5.0, server_bytes_per_s=2e7)
    assert shared.column("down_bytes") == pytest.approx(1e8)
    # a quorum of one ends the round when the fast one is done: 2.5 + 9 + 10 s, when the slow one had its 100 MB
    assert federate(who, model_bytes=1e8, rounds=1, count=2, quorum=1).column("down_bytes") == pytest.approx(2e8)
    # moved by 4 s: the first alone for 2.5 s at 20, then both at 10
    both = moved_by(4.0, np.full(2, 1e8), np.array([2e7, 2e7]), np.array([0.0, 2.5]), 2e7)
    assert both == pytest.approx([6.5e7, 1.5e7])
    assert moved_by(9e9, np.full(2, 1e8), np.array([2e7, 2e7]), np.array([0.0, 2.5]), 2e7) == pytest.approx(1e8)


def test_draws_add_up_and_follow_weights(tmp_path: Path):
    who = clients(tmp_path, *[f"c{k},1,1GB/s,1GB/s,,,{k + 1}," for k in range(20)])
    even = federate(who, model_bytes=1e6, rounds=2000, count=5)
    assert even.drawn.sum() == 2000 * 5 and even.drawn == pytest.approx(500, abs=5 * np.sqrt(375))
    more = federate(who, model_bytes=1e6, rounds=2000, count=5, sample="weighted")
    assert more.drawn[-1] > 4 * more.drawn[0]
    away = clients(tmp_path, *["c,1,1GB/s,1GB/s,0.5,,,"] * 40)
    asked = federate(away, model_bytes=1e6, rounds=500, count=40).column("asked")
    assert asked.mean() == pytest.approx(20, abs=0.7)
    again = [federate(who, model_bytes=1e6, rounds=50, count=5, seed=3) for _ in range(2)]
    assert again[0].drawn.tolist() == again[1].drawn.tolist()


def test_the_command_and_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    clients(tmp_path, *["a,2,10MB/s,5MB/s,,,,"] * 3)
    asked = ["federate", "gpt2", "--clients", str(tmp_path / "c.csv"), "--rounds", "5", "--json"]
    assert main([*asked, "-o", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    size = found["model_bytes"]
    assert found["round_s"]["mean"] == pytest.approx(size / 1e7 + 2 + size / 5e6) and found["answered"] == 15
    assert main(["query", str(tmp_path / "out"), "select count(*) as n from rounds", "--csv"]) == 0
    assert capsys.readouterr().out.split() == ["n", "5"]
    assert main([*asked, "--deadline", "20s", "-o", str(tmp_path / "cut")]) == 0
    assert json.loads(capsys.readouterr().out)["answered"] == 0
    assert main(["compare", str(tmp_path / "out"), str(tmp_path / "cut")]) == 0
    assert "answered" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "out"), str(tmp_path / "cut"), "-o", str(tmp_path / "p.html")]) == 0
    page = (tmp_path / "p.html").read_text()
    assert "Participation" in page and "Rounds" in page and "cut" in page


def naive_finished(size, rate, start, limit):
    """In steps of a millisecond."""
    left, end, now = list(size), [None] * len(size), 0.0
    while None in end:
        going = [i for i in range(len(size)) if start[i] <= now and end[i] is None]
        room, share = limit, dict.fromkeys(going, 0.0)
        for n, i in enumerate(sorted(going, key=lambda i: rate[i])):
            share[i] = min(rate[i], room / (len(going) - n))
            room -= share[i]
        now += 1e-3
        for i in going:
            left[i] -= share[i] * 1e-3
            if left[i] <= 0:
                end[i] = now
    return end


def test_sharing_agrees_with_a_naive_clock():
    rng = np.random.default_rng(5)
    size, rate, start = rng.uniform(1, 5, 7), rng.uniform(0.5, 3, 7), rng.uniform(0, 4, 7)
    found = finished(size, rate, start, 4.0)
    assert found == pytest.approx(naive_finished(size, rate, start, 4.0), abs=0.05)


def test_a_swarm_gives_everybody_everything_within_its_links():
    rng, n, size = np.random.default_rng(0), 12, 64e6
    up, down = rng.uniform(5e6, 1e7, n), rng.uniform(5e6, 1e7, n)
    for rules in (
        Swarm(chunk_bytes=1e6),
        Swarm(chunk_bytes=1e6, warmup=0.2, lag_ns=5e9),
        Swarm(chunk_bytes=1e6, peers=4),
    ):
        found = spread(rules, size, up, down, np.zeros(n), np.random.default_rng(1))
        took = found.end_s.max()
        assert (found.held == 1).all() and found.got_bytes == pytest.approx((n - 1) * size)
        assert found.sent_bytes.sum() == pytest.approx(n * (n - 1) * size)
        assert (found.sent_bytes <= up * took * (1 + 1e-9)).all() and (found.got_bytes <= down * took).all()
        slowest = max(size / min(up), 11 * size / min(down), 12 * 11 * size / sum(up))
        assert found.bound_s == pytest.approx(slowest) and slowest <= took < 1.25 * slowest


def test_a_swarm_by_hand():
    # two clients, one chunk of 10 MB at 10 MB/s each: both have both after a second
    two = np.full(2, 1e7)
    assert spread(Swarm(chunk_bytes=1e7), 1e7, two, two, np.zeros(2), np.random.default_rng(0)).end_s.tolist() == [1, 1]
    # the second has its update 3 s later: the first waits for it
    late = spread(Swarm(chunk_bytes=1e7), 1e7, two, two, np.array([2.0, 5.0]), np.random.default_rng(0))
    assert late.end_s.tolist() == [6.0, 3.0]
    # a slower link saves up: a chunk of 10 MB at 4 MB/s is there with the third slot of a second
    slow = spread(Swarm(chunk_bytes=1e7), 1e7, two, np.array([1e7, 4e6]), np.zeros(2), np.random.default_rng(0))
    assert slow.end_s.tolist() == [1.0, 3.0]
    cut = spread(Swarm(chunk_bytes=1e7), 1e7, two, two, np.array([2.0, 5.0]), np.random.default_rng(0), end_s=4.0)
    assert cut.held.tolist() == [0.0, 1.0]


def test_a_warm_up_takes_its_part_and_lags_cost():
    n = 20
    who = alike(tuple(map(str, range(n))), np.zeros(n), np.full(n, 1e9), np.full(n, 1e9))
    given = {"model_bytes": 1e9, "rounds": 2, "count": n}
    plain = federate(who, **given, swarm=Swarm(chunk_bytes=1e7)).summary()
    warm = federate(who, **given, swarm=Swarm(chunk_bytes=1e7, warmup=0.1, lag_ns=2e9)).summary()
    assert plain["bound_s"] == pytest.approx(19.0) and plain["warmup_share"] == 0 and plain["delivered"] == 1
    assert 19.0 <= plain["round_s"]["mean"] < 19.4
    assert plain["round_s"]["mean"] + 1 < warm["round_s"]["mean"] < plain["round_s"]["mean"] + 2.5
    assert 0.08 < warm["warmup_share"] < 0.25


def test_two_states_have_their_long_run_and_their_absences():
    rng = np.random.default_rng(0)
    there = two_states(np.full(400, 0.6), np.full(400, 5.0), 2000, rng)
    assert there.mean() == pytest.approx(0.6, abs=0.01)
    ended = (~there[:-1] & there[1:]).sum()
    assert (~there).sum() / ended == pytest.approx(5.0, rel=0.03)
    with pytest.raises(UsageError, match="not possible"):
        two_states(np.array([0.1]), np.array([1.5]), 3, rng)


def test_groups_go_away_together_and_every_way_to_sample_sees_it():
    n = 60
    who = alike(tuple(map(str, range(n))), np.ones(n), np.full(n, 1e9), np.full(n, 1e9)).in_groups(6, 10).with_labels(6)
    together = GroupPresence(available=0.7, away=8.0)
    given = {"model_bytes": 1e6, "rounds": 400, "count": 8, "together": together, "deadline_s": 60.0}
    found = {way: federate(who, **given, sample=way) for way in ("psp", "awpsp")}
    assert found["psp"].there.tolist() == found["awpsp"].there.tolist()
    assert len(set(found["psp"].there[:10])) == 1  # a group is there as one
    even, drawn = found["awpsp"].summary(), found["psp"].summary()
    assert even["participation"]["variance"] < drawn["participation"]["variance"] / 4
    assert even["label_coverage"] >= drawn["label_coverage"]
    same = {way: federate(who, model_bytes=1e6, rounds=400, count=6, sample=way).taken for way in ("psp", "awpsp")}
    assert same["psp"].sum() == same["awpsp"].sum() == 2400
    assert same["awpsp"] == pytest.approx(40, abs=5)
    gone = federate(who, **given, leave=True)
    assert gone.taken.sum() < gone.drawn.sum()


def test_shares_are_what_is_done_by_the_deadline(tmp_path: Path):
    # 100 MB: 10 s down; 12 s of steps, 8 of them without gradients of weights; 20 s up
    who = clients(tmp_path, "a,12,10MB/s,5MB/s,,,,", "b,0.3,1GB/s,1GB/s,,,,", "c,90,10MB/s,5MB/s,,,,")
    given = {"model_bytes": 1e8, "steps": 1, "parts": 10}
    auto = trained(who, "share:auto", deadline_s=30.0, **given)
    assert auto.share.tolist() == [0.5, 1.0, 0.1]  # 10 + 8 + 0.5 (4 + 20) = 30; all of it; one part at least
    found = federate(auto, model_bytes=1e8, rounds=1, count=3, deadline_s=30.0, parts=10)
    assert found.taken.tolist() == [1, 1, 0] and found.column("up_bytes").tolist() == [1.5e8]
    assert found.column("untrained").tolist() == [0.0]
    full = federate(trained(who, "full", deadline_s=0, **given), model_bytes=1e8, rounds=1, count=3)
    assert full.round_s.tolist() == federate(who, model_bytes=1e8, rounds=1, count=3).round_s.tolist() == [120.0]
    for bad in ("share:auto", "share:2", "some"):
        with pytest.raises(UsageError, match="--train"):
            trained(who, bad, deadline_s=0.0, **given)


def test_clients_by_number_and_what_cannot_be(capsys: pytest.CaptureFixture[str]):
    asked = ["federate", "gpt2", "--clients", "8", "--rounds", "2", "--json"]
    assert main([*asked, "--link", "1..2Gb/s", "--share", "swarm", "--chunk", "10MB"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["delivered"] == 1.0 and 0.7 < found["of_bound"] <= 1.0
    for more, said in (
        ([], "need links"),
        (["--link", "2..1Gb/s"], "an ascending range"),
        (["--link", "1Gb/s", "--available", "0..2"], "--available"),
        (["--link", "1Gb/s", "--share", "mail"], "--share"),
        (["--link", "1Gb/s", "--share", "swarm", "--chunk", "1"], "too many to simulate"),
        (["--link", "1Gb/s", "--share", "swarm", "--quorum", "3"], "--quorum is not read by `etude federate swarm`"),
        (["--link", "1Gb/s", "--share", "swarm+warmup", "--lag=-3s"], "negative"),
        (["--link", "1Gb/s", "--correlated", "3x3"], "are not 8 clients"),
        (["--link", "1Gb/s", "--correlated", "2x4:available=2"], "not between 0 and 1"),
        (["--link", "1Gb/s", "--correlated", "groups"], "have no groups"),
    ):
        assert main([*asked, *more]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("row", "more", "said"),
    [
        ("a,-1,1MB/s,1MB/s,,,,", {}, "step_s: `-1`"),
        ("a,1,fast,1MB/s,,,,", {}, "down"),
        ("a,1,1MB/s,0MB/s,,,,", {}, "up: `0MB/s` must be above 0"),
        ("a,1,1MB/s,1MB/s,1.5,,,", {}, "available: more than 1"),
        ("a,1,1MB/s,1MB/s,,1,,", {}, "the round never ends"),
        ("a,1,1MB/s,1MB/s,,,,", {"count": 2}, "2 clients per round, but there are 1"),
        ("a,1,1MB/s,1MB/s,,,,", {"quorum": 2}, "never reached"),
        ("a,1,1MB/s,1MB/s,,,,", {"sample": "tall"}, "unknown method `tall`"),
    ],
)
def test_what_cannot_be_is_refused(row: str, more: dict, said: str, tmp_path: Path):
    with pytest.raises(UsageError, match=said):
        federate(clients(tmp_path, row), **{"model_bytes": 1e6, "rounds": 2, "count": 1} | more)
