"""Request files as people publish them, and drawn streams."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from etude.base.errors import EtudeError
from etude.make.generate.model import positions_of
from etude.surface.cli import main
from etude.world.serve.request_files import read_requests
from etude.world.serve.requests import requests_of
from etude.world.serve.workloads import at_rate, poisson, request_stream, statistics


def test_an_engine_refuses_prompts_without_room_and_ends_answers():
    """Of 10 tokens: a prompt of 4 keeps 6 of its answer, one of 9 one token, one of 10 none; request 3 waits for it."""
    given = requests_of(
        [0, 1, 2, 3, 4], [4, 9, 10, 2, 2], [20, 5, 5, 5, 5], blocks=[[7], [7, 8], [9], [7], [1]],
        parents=[[], [], [], [2], [1]], tier=[0, 1, 2, 3, 4],
    )  # fmt: skip
    found = given.within(10)
    assert (found.prompt.tolist(), found.output.tolist()) == ([4, 9, 2], [6, 1, 5])
    assert (found.refused, found.tier.tolist()) == (2, [0, 1, 4])
    assert (found.block_start.tolist(), len(found.block), found.block[0] == found.block[1]) == ([0, 1, 3, 4], 4, True)
    assert (found.parent_start.tolist(), found.parent.tolist()) == ([0, 0, 0, 1], [1])
    assert given.within(100).refused == 0
    with pytest.raises(EtudeError, match="no request fits 2 tokens"):
        given.within(2)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [("llama3-8b", 8192), ("meta-llama/Meta-Llama-3-8B", 8192), ("meta-llama/Llama-3.1-8B", 0), ("nobody/knows", 0)],
)
def test_tokens_that_a_model_takes(name: str, tokens: int):
    assert positions_of(name) == tokens


def test_requests_that_are_longer_than_the_model_takes_are_said(capsys: pytest.CaptureFixture[str]):
    words = ["serve", "gpt2", "--system", "dgx-h100", "--rate", "1", "--count", "3"]
    assert main([*words, "--prompt", "2000", "--output", "4"]) == 2
    assert "every prompt has 2,000 tokens or more, and the model takes 1,024" in capsys.readouterr().err
    assert main([*words, "--prompt", "1000", "--output", "100"]) == 0
    assert "3 of 3 requests are longer than the 1,024 tokens" in capsys.readouterr().err
    assert main([*words, "--prompt", "1000", "--output", "100", "--max-model-len", "1024", "--json"]) == 0
    found = capsys.readouterr()
    assert "longer than" not in found.err
    assert json.loads(found.out)["refused_requests"] == 0
    assert main([*words, "--prompt", "1000", "--output", "4", "--max-model-len", "900"]) == 2
    assert main([*words, "--prompt", "2000", "--output", "4", "--max-model-len", "4096"]) == 0
    assert "4,096 tokens are more than the model takes" in capsys.readouterr().err


FILES = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:48.6805900,396,109\n",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,374,44,418,API\n"
    "6,ChatGPT,9,0,9,API\n7,GPT-4,396,109,505,API\n",
    "vidur.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,374,44\n3.5,396,109\n",
    "splitwise.csv": "request_id,arrival_timestamp,prompt_size,token_size\n0,0,374,44\n1,2.0,396,109\n",
    "ours.csv": "arrival_ns,prompt,output\n0,374,44\n2000000000,396,109\n",
    "run.jsonl": '{"input_toks": 374, "output_toks": 44, "arrival_time": 1787267980.25}\n'
    '{"input_toks": 396, "output_toks": 109, "arrival_time": 1787267982.25}\n',
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 374, "output_length": 44, "hash_ids": [46, 47]}\n'
    '{"timestamp": 2000, "input_length": 396, "output_length": 109, "hash_ids": [46, 99]}\n',
    "list.json": '{"requests": [{"arrival": 0, "prompt": 374, "output": 44}, {"arrival": 2, "prompt": 396, '
    '"output": 109}]}',
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("packed", [True, False])
def test_files_of_all_kinds_say_the_same(tmp_path: Path, name: str, packed: bool):
    path = tmp_path / (name + ".gz" if packed else name)
    path.write_bytes(gzip.compress(FILES[name].encode()) if packed else FILES[name].encode())
    found = read_requests(path)
    assert found.arrival_ns.tolist() == [0, 2_000_000_000]
    assert found.prompt.tolist() == [374, 396] and found.output.tolist() == [44, 109]


def test_blocks_of_mooncake_are_numbered_from_zero(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    path.write_text(FILES["mooncake.jsonl"])
    found = read_requests(path)
    assert found.block_start.tolist() == [0, 2, 4]
    assert found.block.tolist() == [0, 1, 0, 2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("arrival,prompt,output\n0,0,5\n", "request 0: 0 tokens in, 5 out"),
        ("arrival,prompt,output\n0,5,0\n", "request 0: has no output token"),
        ("arrival,prompt,output\n0,5,-1\n", "request 0: 5 tokens in, -1 out"),
        ("arrival,prompt,output\n0,5,1\n1,x,1\n", "request 1: does not have the numbers of a request"),
        ("arrival,prompt,output\nnan,5,1\n", "request 0: does not have the numbers of a request"),
        ("arrival,tokens\n0,5\n", "no column for `prompt`"),
        ("arrival,prompt,output\n", "has no requests"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, text: str, problem: str):
    path = tmp_path / "r.csv"
    path.write_text(text)
    with pytest.raises(EtudeError, match=problem):
        read_requests(path)


def test_rows_out_of_order_are_refused_or_sorted_on_purpose(tmp_path: Path):
    path = tmp_path / "r.json"
    rows = [(1, 9), (5, 1), (3, 2), (3, 3), (7, 4)]
    path.write_text(json.dumps([{"arrival": t, "prompt": p, "output": 1} for t, p in rows]))
    with pytest.raises(EtudeError, match=r"request 2: arrives at 3, before the previous one \(5\)(.|\n)*--sort"):
        read_requests(path)
    found = read_requests(path, sort=True)
    assert found.arrival_ns.tolist() == [0, 2 * 10**9, 2 * 10**9, 4 * 10**9, 6 * 10**9]
    assert found.prompt.tolist() == [9, 2, 3, 1, 4] and found.moved == 3


def test_drawn_gaps_have_the_rate_and_the_variation():
    for variation in (0.5, 1.0, 3.0):
        gap = np.diff(poisson(10.0, 40_000, 5, 5, seed=1, cv=variation).arrival_ns) / 1e9
        assert gap.mean() == pytest.approx(0.1, rel=0.05)
        assert gap.std() / gap.mean() == pytest.approx(variation, rel=0.08)
    assert set(np.diff(poisson(10.0, 5, 5, 5, cv=0).arrival_ns).tolist()) == {100_000_000}


def test_a_stream_at_another_rate_has_the_same_requests():
    stream = requests_of([0, 10, 40], [1, 2, 3], [4, 5, 6])
    assert at_rate(stream, 2 / 20e-9).arrival_ns.tolist() == [0, 5, 20]


def test_what_else_a_request_carries(tmp_path: Path):
    path = tmp_path / "r.csv"
    path.write_text(
        "arrival,prompt,output,tenant,tier,deadline,branches,parents\n"
        "0,10,4,b,chat,1.5,2,\n0.5,11,5,a,batch,,1,0\n2,12,6,b,chat,2,3,0;1\n"
    )
    found = read_requests(path)
    assert found.tenant.tolist() == [1, 0, 1]
    assert [found.tier_names[t] for t in found.tier] == ["chat", "batch", "chat"]
    assert found.deadline_ns.tolist() == [1_500_000_000, 2**62, 2_000_000_000]
    assert found.branches.tolist() == [2, 1, 3]
    assert found.parent.tolist() == [0, 0, 1] and found.parent_start.tolist() == [0, 0, 1, 3]
    assert found.arrival_ns.tolist() == [0, 500_000_000, 2_000_000_000]  # those of children count from their parents
    assert found.first(2).parent.tolist() == [0] and found.first(2).tier.tolist() == found.tier[:2].tolist()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("0,1,1,,1,0\n", "request 0: waits for request 0"),
        ("0,1,1,,2,\n", "request 0: 2 branches of 1 tokens out"),
        ("0,1,1,soon,1,\n", "request 0: `deadline` cannot be read"),
        ("0,1,1,-1,1,\n", "request 0: deadline_ns"),
        ("0,1,1,0,1,\n", "request 0: deadline_ns 0"),
        ("0,1,1,,0,\n", "request 0: branches 0"),
    ],
)
def test_what_else_is_wrong_with_a_request(tmp_path: Path, rows: str, said: str):
    path = tmp_path / "r.csv"
    path.write_text("arrival,prompt,output,deadline,branches,parents\n" + rows)
    with pytest.raises(EtudeError, match=said):
        read_requests(path)


def vllm_bench(**changed: object) -> str:
    return json.dumps(
        {
            "date": "20261101-101010", "backend": "vllm", "request_rate": 4.0, "duration": 9.0, "completed": 2,
            "request_throughput": 0.2, "input_lens": [374, 5, 396], "output_lens": [44, 0, 109],
            "ttfts": [0.1, 0.0, 0.2], "itls": [[0.01], [], [0.01]], "start_times": [800.5, 801.0, 802.5],
            "generated_texts": ["a", "", "b"], "errors": ["", "lost", ""],
        }
        | changed
    )  # fmt: skip


def test_a_result_of_vllm_bench_serve_is_a_stream(tmp_path: Path):
    path = tmp_path / "vllm-4.0qps.json"
    path.write_text(vllm_bench())
    found = read_requests(path)
    assert found.arrival_ns.tolist() == [0, 2_000_000_000] and found.prompt.tolist() == [374, 396]
    path.write_text(vllm_bench(start_times=[9.5, 8.0, 9.0]))
    assert read_requests(path).prompt.tolist() == [396, 374]
    path.write_text(vllm_bench(input_lens=None))
    with pytest.raises(EtudeError, match="--save-detailed"):
        read_requests(path)
    path.write_text(vllm_bench(start_times=None))
    with pytest.raises(EtudeError, match="start_times"):
        read_requests(path)
    path.write_text(vllm_bench(start_times=None, request_rate="inf"))
    assert read_requests(path).arrival_ns.tolist() == [0, 0]


def test_segments_name_the_parts_of_a_prompt(tmp_path: Path):
    path = tmp_path / "s.jsonl"
    path.write_text(
        '{"arrival": 1, "segments": [["system", 30], ["item-7", 20, 3]], "output": 4}\n'
        '{"arrival": 0, "segments": [["system", 30]], "output": 5}\n'
    )
    found = read_requests(path, sort=True)
    assert found.prompt.tolist() == [30, 50] and not found.chained
    assert found.block[0] == found.block[1] != found.block[2]
    assert found.block_tokens.tolist() == [30, 30, 20] and found.block_home.tolist() == [-1, -1, 3]
    assert found.first(1).block_tokens.tolist() == [30]
    for bad in ("[]", '"system"', '[["system", 0]]', '[["system"]]', '[["system", 5, -1]]'):
        path.write_text(f'{{"arrival": 1, "segments": {bad}, "output": 4}}\n')
        with pytest.raises(EtudeError, match="request 0: segments"):
            read_requests(path)
    path.write_text('{"arrival": 1, "prompt": 9, "segments": [["system", 8]], "output": 4}\n')
    with pytest.raises(EtudeError, match="differ in length from its prompt"):
        read_requests(path)


def test_a_rate_that_swings_has_its_mean_and_its_peak():
    """0.8 sin over 1000 s at 20 a second: 20 (500 + 0.8 * 1000 / pi) come in the first half."""
    at = request_stream(rate_per_s=20.0, count=20_000, cv=0.0, diurnal="0.8@1000s").arrival_ns / 1e9
    assert at[-1] == pytest.approx(1000, rel=0.002)
    assert (at < 500).sum() == pytest.approx(20 * (500 + 800 / np.pi), rel=0.002)
    assert ((at >= 240) & (at < 260)).sum() == pytest.approx(20 * 20 * 1.8, rel=0.02)
    for wrong in ("2", "x", "0.5@0s", "-1@1h"):
        with pytest.raises(EtudeError, match="diurnal"):
            request_stream(rate_per_s=1.0, diurnal=wrong)


def test_lengths_are_drawn_like_those_of_a_file(tmp_path: Path):
    random = np.random.default_rng(0)
    prompt = np.round(np.exp(random.normal(6.0, 0.7, 3000))).astype(int)
    output = np.maximum(np.round(prompt**0.5 * np.exp(random.normal(1.0, 0.3, 3000))), 1).astype(int)
    path = tmp_path / "r.csv"
    path.write_text(
        "arrival,prompt,output\n"
        + "".join(f"{k},{p},{o}\n" for k, (p, o) in enumerate(zip(prompt, output, strict=True)))
    )
    drawn = request_stream(rate_per_s=5.0, count=8000, like=path, seed=3)
    for mine, theirs in ((drawn.prompt, prompt), (drawn.output, output)):
        assert np.median(mine) == pytest.approx(np.median(theirs), rel=0.05)
        assert np.log(mine).std() == pytest.approx(np.log(theirs).std(), rel=0.05)
        assert mine.max() <= theirs.max()
    assert np.corrcoef(np.log(drawn.prompt), np.log(drawn.output))[0, 1] == pytest.approx(
        np.corrcoef(np.log(prompt), np.log(output))[0, 1], abs=0.05
    )
    with pytest.raises(EtudeError, match="leave out --requests"):
        request_stream(path, like=path)


def test_sessions_of_agents_repeat_what_was_said():
    found = request_stream("agents:sessions=200,turns=5,system=1000,message=100,output=50,think=0.5", rate_per_s=2.0)
    said = statistics(found)
    assert said["sessions"] == 200 and len(found) / 200 == pytest.approx(5, rel=0.2)
    assert said["rate_rps"] == pytest.approx(2, rel=0.25) and said["output_mean"] == pytest.approx(50.5, rel=0.1)
    turns = np.flatnonzero(found.session == found.session[-1])
    lists = [found.block[found.block_start[r] : found.block_start[r + 1]].tolist() for r in turns]
    for before, after in pairwise(lists):
        assert after[: len(before)] == before and len(after) == len(before) + 2
    for wrong, why in (
        ("agents:turn=3", "unknown key"),
        ("agents:turns=4294967296", "pieces of prompts are more than 100,000,000"),
        ("recommend:requests=100000,items=100000", "10,000,000,000 popularities are more than"),
        ("agents:turns", "agents:"),
        ("recommend:items=x", "column 17: `items=x`: `x` is not a count"),
    ):
        with pytest.raises(EtudeError, match=why):
            request_stream(wrong)
