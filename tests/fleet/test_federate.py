"""Federated rounds, worked by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from etude.cli import main
from etude.errors import UsageError
from etude.fleet.federated import federate, read_clients
from etude.fleet.federated.rounds import finished

HEAD = "name,step_s,down,up,available,drops,samples,share"


def clients(tmp_path: Path, *rows: str):
    (tmp_path / "c.csv").write_text("\n".join([HEAD, *rows]) + "\n")
    return read_clients(tmp_path / "c.csv")


def test_all_alike_is_the_closed_form(tmp_path: Path):
    # 100 MB down in 10 s, 3 steps of 2 s, up in 20 s
    found = federate(clients(tmp_path, *["a,2,10MB/s,5MB/s,,,,"] * 4), model_bytes=1e8, rounds=7, count=4, steps=3)
    assert found.round_s.tolist() == [36.0] * 7
    assert found.up_bytes.sum() == found.down_bytes.sum() == 7 * 4 * 1e8
    assert found.taken.tolist() == [7] * 4


def test_the_slowest_decides_unless_a_deadline_or_a_quorum_does(tmp_path: Path):
    who = clients(
        tmp_path, "fast,1,100MB/s,100MB/s,,,,", "slow,30,100MB/s,100MB/s,,,,", "half,8,100MB/s,100MB/s,,,,0.5"
    )
    given = {"model_bytes": 1e8, "rounds": 2, "count": 3}
    assert federate(who, **given).round_s.tolist() == [32.0] * 2
    cut = federate(who, **given, deadline_s=10.0)
    assert cut.round_s.tolist() == [10.0] * 2 and cut.taken.tolist() == [2, 0, 2]
    assert federate(who, **given, quorum=2).round_s.tolist() == [9.0] * 2  # the half one: 0.5 + 8 + 0.5


def test_the_servers_link_is_shared(tmp_path: Path):
    # 10 and 30 MB/s of a limit of 20: 10 each; at 10 s both have 100 MB
    assert finished(np.full(2, 1e8), np.array([1e7, 3e7]), np.zeros(2), 2e7).tolist() == [10.0, 10.0]
    # the second begins at 2.5 s, when the first has 50 MB: 10 MB/s each until 7.5; then 50 MB at 20
    assert finished(np.full(2, 1e8), np.array([2e7, 2e7]), np.array([0.0, 2.5]), 2e7) == pytest.approx([7.5, 10.0])
    who = clients(tmp_path, *["a,2,10MB/s,10MB/s,,,,"] * 8)
    found = federate(who, model_bytes=1e8, rounds=3, count=8, server_bytes_per_s=4e7)
    assert found.round_s.tolist() == pytest.approx([20 + 2 + 20] * 3)  # k W / B each way


def test_draws_add_up_and_follow_weights(tmp_path: Path):
    who = clients(tmp_path, *[f"c{k},1,1GB/s,1GB/s,,,{k + 1}," for k in range(20)])
    even = federate(who, model_bytes=1e6, rounds=2000, count=5)
    assert even.drawn.sum() == 2000 * 5 and even.drawn == pytest.approx(500, abs=5 * np.sqrt(375))
    more = federate(who, model_bytes=1e6, rounds=2000, count=5, sample="weighted")
    assert more.drawn[-1] > 4 * more.drawn[0]
    away = clients(tmp_path, *["c,1,1GB/s,1GB/s,0.5,,,"] * 40)
    assert federate(away, model_bytes=1e6, rounds=500, count=40).asked.mean() == pytest.approx(20, abs=0.7)
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


@pytest.mark.parametrize(
    ("row", "more", "said"),
    [
        ("a,-1,1MB/s,1MB/s,,,,", {}, "step_s: `-1`"),
        ("a,1,fast,1MB/s,,,,", {}, "down"),
        ("a,1,1MB/s,0MB/s,,,,", {}, "carries nothing"),
        ("a,1,1MB/s,1MB/s,1.5,,,", {}, "available: more than 1"),
        ("a,1,1MB/s,1MB/s,,1,,", {}, "waited for forever"),
        ("a,1,1MB/s,1MB/s,,,,", {"count": 2}, "2 clients a round of 1"),
        ("a,1,1MB/s,1MB/s,,,,", {"quorum": 2}, "never reached"),
        ("a,1,1MB/s,1MB/s,,,,", {"sample": "tall"}, "no such way `tall`"),
    ],
)
def test_what_cannot_be_is_refused(row: str, more: dict, said: str, tmp_path: Path):
    with pytest.raises(UsageError, match=said):
        federate(clients(tmp_path, row), **{"model_bytes": 1e6, "rounds": 2, "count": 1} | more)
