"""Prompts and answers on replicas of their own, with keys and values sent between them: by hand."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from etude.base.errors import UsageError
from etude.surface.cli import main
from etude.world.serve import Engine, serve
from etude.world.serve import state as of
from etude.world.serve.hooks import Hooks
from etude.world.serve.requests import requests_of
from etude.world.serve.serving import Group
from etude.world.serve.steps import step_cost
from etude.world.serve.wire import Codec, wire_of

CONSTANT = step_cost(tokens=[1], layers_ns=[1000.0])
SLOW = step_cost(tokens=[1], layers_ns=[3000.0])
PLAIN = Engine(async_scheduling=False)


def apart(prefill: int = 1, decode: int = 1, blocks: int = 0, slow: bool = False) -> list[Group]:
    return [
        Group(CONSTANT, prefill, of.PREFILL, blocks),
        Group(SLOW if slow else CONSTANT, decode, of.DECODE, blocks),
    ]


def test_one_request_pays_for_its_keys_and_values():
    # 10 tokens of 100 bytes at 1 byte/ns: 1,000 ns, and 50 ns on the way.
    found = serve(requests_of([0], [10], [3]), PLAIN, apart(), wire=wire_of(100, 1e9, 50, choose="best"))
    assert found.column("FIRST").tolist() == [1000]
    assert found.column("READY").tolist() == [2050]
    assert found.column("FINISH").tolist() == [4050]
    assert found.column("SENT").tolist() == [1000]
    assert [found.column(name).tolist() for name in ("REPLICA", "DECODER")] == [[0], [1]]
    assert found.count("USED").tolist() == [0, 0] and found.count("PENDING").tolist() == [0, 0]


def test_two_kinds_of_replicas_take_their_own_times():
    found = serve(requests_of([0], [10], [3]), PLAIN, apart(slow=True), wire=wire_of(0.0, choose="best"))
    assert found.column("FINISH").tolist() == [1000 + 2 * 3000]


def test_transfers_share_the_port_out():
    # Both prompts are read in one pass; the second transfer begins when the first is through.
    found = serve(requests_of([0, 0], [10, 10], [2, 2]), PLAIN, apart(1, 2), wire=wire_of(100, 1e9, choose="best"))
    assert found.column("READY").tolist() == [2000, 3000]
    assert found.column("FINISH").tolist() == [3000, 4000]


def test_an_answer_of_one_token_is_sent_nowhere():
    found = serve(requests_of([0], [10], [1]), PLAIN, apart(), wire=wire_of(100, 1e9, choose="best"))
    assert found.column("FINISH").tolist() == [1000] and found.column("SENT").tolist() == [0]


def test_a_codec_pays_on_a_slow_link_alone():
    """Ratio 4, 500 ns to code and 500 to decode: three quarters of the wire against 1,000 ns."""
    codecs = [Codec("none"), Codec("four", 4.0, 2e9, 2e9)]
    requests = requests_of([0], [10], [2])
    ready = {}
    for rate in (0.5e9, 2e9):
        for choose in ("fixed:none", "fixed:four", "best"):
            found = serve(requests, PLAIN, apart(), wire=wire_of(100, rate, 0, codecs, choose))
            ready[rate, choose] = int(found.column("READY")[0])
    assert ready[0.5e9, "fixed:none"] == 1000 + 2000 and ready[0.5e9, "fixed:four"] == 1000 + 500 + 500 + 500
    assert ready[2e9, "fixed:none"] == 1000 + 500 and ready[2e9, "fixed:four"] == 1000 + 500 + 125 + 500
    for rate in (0.5e9, 2e9):
        assert ready[rate, "best"] == min(ready[rate, "fixed:none"], ready[rate, "fixed:four"])


def test_a_link_that_changes_while_bytes_are_on_it():
    # 1,000 bytes from 1,000 on: 500 at 1 byte/ns, 300 at a tenth from 1,500 to 4,500, the rest at 2 bytes/ns.
    wire = wire_of(100, 1e9, 0, choose="best", later=[(1500, 1e8), (4500, 2e9)])
    found = serve(requests_of([0], [10], [2]), PLAIN, apart(), wire=wire)
    assert found.column("READY").tolist() == [4500 + 100]
    same = wire_of(100, 1e9, 0, choose="best", later=[(0, 1e9), (10**6, 1e8)])
    assert serve(requests_of([0], [10], [2]), PLAIN, apart(), wire=same).column("READY").tolist() == [2000]


def test_the_rate_of_a_link_is_learnt():
    """Ratio 4 at no cost. Nothing is coded before a transfer was there; then 10 ns a byte is known, so that it is. The
    newest counts for a half: after 20 ns a byte it is 15."""
    codecs, at = [Codec("none"), Codec("four", 4.0, 1e8, 1e8)], [0, 50_000, 100_000, 300_000]
    wire = wire_of(100, 1e8, 0, codecs, "learn:0.5", later=[(90_000, 5e7)])
    found = serve(requests_of(at, [10] * 4, [2] * 4), PLAIN, apart(), wire=wire)
    # Coded: 20,000 ns of the codec and 2,500 of the link, against 10,000 as it is: not before it takes 26.7 ns a byte.
    assert found.column("CODED").tolist() == [0, 0, 0, 0] and found.state.link_ns.tolist() == [0.0, 17.5]
    codecs = [Codec("none"), Codec("four", 4.0, 1e9, 1e9)]
    found = serve(requests_of(at, [10] * 4, [2] * 4), PLAIN, apart(), wire=wire_of(100, 1e8, 0, codecs, "learn:0.5"))
    assert found.column("CODED").tolist() == [0, 1, 1, 1] and found.state.link_ns.tolist() == [0.0, 10.0]
    together = serve(requests_of([0, 0], [10] * 2, [2] * 2), PLAIN, apart(), wire=wire_of(100, 1e8, 0, codecs, "learn"))
    assert together.column("CODED").tolist() == [0, 0]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--kv-codec", "fp8", "--kv-choose", "learn:2"], "learn:2"),
        (["--kv-codec", "fp8", "--kv-choose", "lern"], "lern"),
        (["--link-later", "5s"], "5s"),
        (["--link-later", "5s:1GB/s;5s:2GB/s"], "column 10: `5s:2GB/s`: `5s` is not later"),
    ],
)  # fmt: skip
def test_what_is_no_choice_and_no_link_is_refused(flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]):
    given = ["serve", "llama3-8b", "--system", "dgx-h100", "--disaggregate", "1:1", "--rate", "1", "--count", "1"]
    assert main([*given, *flags]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("blocks", [0, 6])
def test_tokens_are_conserved_apart_too(blocks: int):
    random = np.random.default_rng(1)
    requests = requests_of(
        np.cumsum(random.integers(0, 900, 200)), random.integers(1, 60, 200), random.integers(1, 30, 200)
    )
    engine = Engine(max_num_batched_tokens=64, max_num_seqs=5)
    found = serve(requests, engine, apart(2, 3, blocks), router="least", wire=wire_of(100, 1e9, 10, choose="best"))
    assert found.count("MADE").sum() == requests.output.sum()
    assert found.count("USED").tolist() == [0] * 5 and found.count("PENDING").tolist() == [0] * 5
    assert (found.column("FINISH") >= found.column("FIRST")).all()
    assert set(found.column("REPLICA").tolist()) <= {0, 1}
    more = requests.output > 1
    assert set(found.column("DECODER")[more].tolist()) <= {2, 3, 4}
    assert (found.column("READY")[more] >= found.column("FIRST")[more] + 100 * requests.prompt[more] + 10).all()


def test_hooks_say_where_an_answer_goes_on_and_how():
    asked = []

    def place(request, replicas, now_s):
        asked.append((request["request"], [r.role for r in replicas], now_s))
        return 2

    hooks = Hooks(place=place, choose=lambda request, codecs, now_s: 1)
    codecs = [Codec("none"), Codec("four", 4.0)]
    found = serve(
        requests_of([0, 0], [10, 10], [2, 2]),
        PLAIN,
        apart(1, 2),
        hooks=hooks,
        wire=wire_of(100, 1e9, 0, codecs, "best"),
    )
    assert [row[0] for row in asked] == [0, 1] and asked[0][1:] == (["prefill", "decode", "decode"], 1e-6)
    assert found.column("DECODER").tolist() == [2, 2] and found.column("CODED").tolist() == [1, 1]
    assert found.column("READY").tolist() == [1250, 1500]
    wrong = Hooks(place=lambda *_: 0)
    with pytest.raises(UsageError, match="request 0: `<lambda>` returned 0"):
        serve(requests_of([0], [10], [2]), PLAIN, apart(), hooks=wrong)


def test_one_pool_alone_is_refused():
    with pytest.raises(UsageError, match="prefill and decode each need replicas"):
        serve(requests_of([0], [10], [2]), PLAIN, [Group(CONSTANT, 1, of.PREFILL)])


def test_children_arrive_when_their_parents_are_done():
    # 0 takes 1000 + 1000; 1 waits 500 after it; 2 waits for both of them.
    requests = requests_of([0, 500, 0], [4, 4, 4], [2, 1, 1], parents=[[], [0], [0, 1]])
    found = serve(requests, PLAIN, CONSTANT)
    assert found.column("ARRIVAL").tolist() == [0, 2500, 3500]
    assert found.column("FINISH").tolist() == [2000, 3500, 4500]


def test_replicas_that_decode_wait_for_one_another_and_those_that_read_prompts_do_not():
    # Two answers of 3 on a decoder each; the second prompt is read while the first answer runs.
    engine = Engine(async_scheduling=False, barrier=True)
    found = serve(requests_of([0, 500], [10, 10], [3, 3]), engine, apart(1, 2), wire=wire_of(0.0, choose="best"))
    # Prompts 0..1000 and 1000..2000; the first decodes 1000..3000; what lands when a step has begun waits for its end.
    assert found.column("FIRST").tolist() == [1000, 2000]
    assert found.column("FINISH").tolist() == [3000, 5000]


def test_pools_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Two kinds of devices, codecs of a file, limits by tier, a hook of the user's."""
    (tmp_path / "pool.yaml").write_text(
        "model: llama3-8b\npools:\n  - {role: prefill, system: dgx-h100}\n"
        "  - {role: decode, count: 2, system: dgx-a100}\n"
    )
    (tmp_path / "r.csv").write_text("arrival,prompt,output,tier\n0,100,4,chat\n0.1,500,6,batch\n0.2,9,1,chat\n")
    (tmp_path / "codecs.csv").write_text("name,ratio,encode,decode\nnone,1,,\nhalf,2,40GB/s,60GB/s\n")
    (tmp_path / "mine.py").write_text("def last(request, replicas, now_s):\n    return len(replicas) - 1\n")
    out = tmp_path / "r.parquet"
    base = ["serve", str(tmp_path / "pool.yaml"), "--requests", str(tmp_path / "r.csv")]
    more = ["--kv-codec", str(tmp_path / "codecs.csv"), "--kv-choose", "fixed:half", "--link", "10Gb/s"]
    hook = ["--hook", f"place={tmp_path / 'mine.py'}:last", "--requests-out", str(out), "--json"]
    assert main([*base, *more, *hook, "--slo", "chat:ttft=1s;batch:latency=1us"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kv_sent_bytes"] == 600 * 131072 // 2  # of the third nothing is sent
    assert found["tiers"]["chat"]["within_limits"] == 1.0 and found["tiers"]["batch"]["within_limits"] == 0.0
    assert pq.read_table(out)["decode_replica"].to_pylist() == [2, 2, 0]
    assert found["engine"].startswith("vLLM")
    for wrong, said in (
        (["--disaggregate", "2"], "--disaggregate: column 1: `2` is not two numbers"),
        (["--kv-codec", "zip"], "unknown codec `zip`"),
        (["--kv-codec", "fp8", "--kv-choose", "fixed:x"], "--kv-choose: column 7: `fixed:x`: unknown codec `x`"),
        (["--hook", "evict"], "--hook: column 1: `evict` has no value"),
        (["--slo", "gold:ttft=1s"], "no request has tier `gold`"),
    ):
        start = base if "--disaggregate" not in wrong else ["serve", "llama3-8b", "--system", "dgx-h100", "--rate", "1"]
        assert main([*start, *wrong]) == 2
        assert said in capsys.readouterr().err


def test_replicas_wait_for_one_another_where_they_share_experts(capsys: pytest.CaptureFixture[str]):
    """Experts over two replicas: every pass needs both, so that steps have a barrier. Replicas alone have none."""
    asked = ["serve", "--system", "dgx-h100", "--replicas", "2", "--rate", "50", "--count", "6", "--json"]
    assert main([*asked, "qwen3-30b-a3b", "--ep", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["step_imbalance"] >= 0
    assert main([*asked, "gpt2"]) == 0
    assert json.loads(capsys.readouterr().out)["step_imbalance"] is None
