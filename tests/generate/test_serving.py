"""Serving: batching that loses nothing, passes as closed forms say, jobs that run."""

import gzip
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etude
from etude.base.errors import UsageError
from etude.cost.aten_matrix import VARLEN
from etude.cost.ops import OpClass
from etude.cost.traces import ops_of
from etude.machine import open_system
from etude.make.generate.model.open import open_model
from etude.make.generate.model.shape import Model
from etude.make.generate.passes import PassShape, pass_job
from etude.make.generate.plan import Plan
from etude.make.generate.serving.batching import DRAFT, BatchLimits, batch
from etude.make.generate.serving.job import Serving, serve
from etude.make.generate.serving.requests import Request
from etude.model.schema import Kind
from etude.steps.serving import predict_serving
from etude.surface.cli import main
from toy_systems import one_level

TINY = Model(name="tiny", layers=4, hidden=64, heads=4, kv_heads=2, head_size=16, ffn=128, vocab=512, gated=True)
EXPERTS = TINY.replace(name="experts", experts=4, top_k=2, expert_ffn=32)
LATENT = TINY.replace(name="latent", kv_rank=32, rope_size=8, nope_size=16, value_size=16, q_rank=24)
DRAFT_MODEL = TINY.replace(name="draft", layers=1, hidden=32, ffn=64, head_size=8)


# --- batching

requests = st.lists(
    st.builds(Request, st.integers(1, 40), st.integers(1, 9), st.integers(0, 500)), min_size=1, max_size=8
)
batchings = st.builds(
    BatchLimits,
    max_batch=st.integers(1, 5),
    token_budget=st.integers(40, 64),
    chunked=st.just(False),
    kv_tokens=st.integers(50, 200),
) | st.builds(
    BatchLimits,
    max_batch=st.integers(1, 5),
    token_budget=st.integers(6, 30),
    chunked=st.just(True),
    kv_tokens=st.integers(50, 200),
    speculate=st.integers(0, 3),
)


@given(requests, batchings, st.booleans())
def test_every_token_goes_through_once_and_limits_hold(rs: list[Request], b: BatchLimits, timed: bool):
    made = batch(rs, b, (lambda p: 7.0 * p.tokens) if timed else None)
    done: dict[int, int] = defaultdict(int)
    out: dict[int, int] = defaultdict(int)
    for one in made.passes:
        if one.which == DRAFT:
            continue
        assert len(one.spans) <= b.max_batch
        assert len({s.request for s in one.spans}) == len(one.spans)
        decode = [s for s in one.spans if not s.prompt]
        assert one.tokens <= max(b.token_budget, sum(s.queries for s in decode))
        for s in one.spans:
            assert s.keys == done[s.request] + s.queries or not s.prompt
            if s.prompt:
                done[s.request] += s.queries
                assert s.last == (done[s.request] == rs[s.request].prompt)
            else:
                assert done[s.request] == rs[s.request].prompt
                out[s.request] += 1
    assert {r: done[r] for r in range(len(rs))} == {i: r.prompt for i, r in enumerate(rs)}
    for i, r in enumerate(rs):
        rounds = out[i]
        assert -(-(r.output - 1) // (b.speculate + 1)) <= rounds <= r.output - 1
    assert made.kv_tokens <= b.kv_tokens


@given(requests, batchings, st.booleans())
def test_who_gives_way_reads_again_and_all_get_their_tokens(rs: list[Request], b: BatchLimits, timed: bool):
    b = replace(b, preempt=True, token_budget=b.token_budget if b.chunked else 100, speculate=0)
    made = batch(rs, b, (lambda p: 7.0 * p.tokens) if timed else None)
    held: dict[int, int] = defaultdict(int)
    out: dict[int, int] = defaultdict(int)
    again = 0
    for one in made.passes:
        for s in one.spans:
            if s.prompt and s.keys == s.queries:  # begins, or begins again
                again += out[s.request] > 0
                held[s.request] = 0
            held[s.request] += s.queries
            assert s.keys == held[s.request] == (s.keys if s.prompt else rs[s.request].prompt + out[s.request])
            assert s.last == (s.prompt and s.keys == rs[s.request].prompt + out[s.request])
            out[s.request] += s.last or not s.prompt
    assert [out[i] for i in range(len(rs))] == [r.output for r in rs]
    assert again <= made.stopped
    assert made.kv_tokens <= b.kv_tokens


def test_the_last_gives_way_by_hand():
    """Room for 12 tokens: both prompts fit, and after two tokens each the second gives way until the first is done."""
    made = batch([Request(4, 5), Request(4, 5)], BatchLimits(kv_tokens=12, preempt=True))
    assert [(p.phase, [(s.request, s.queries, s.keys) for s in p.spans]) for p in made.passes] == [
        ("prefill", [(0, 4, 4), (1, 4, 4)]),
        ("decode", [(0, 1, 5), (1, 1, 5)]),
        ("decode", [(0, 1, 6)]),
        ("decode", [(0, 1, 7)]),
        ("decode", [(0, 1, 8)]),
        ("prefill", [(1, 6, 6)]),
        ("decode", [(1, 1, 7)]),
        ("decode", [(1, 1, 8)]),
    ]
    assert made.stopped == 1


def test_prompts_alone_or_cut_and_shared_by_hand():
    rs = [Request(10, 3), Request(4, 3)]
    whole = batch(rs, BatchLimits(token_budget=12))
    assert [(p.phase, [(s.request, s.queries, s.keys) for s in p.spans]) for p in whole.passes] == [
        ("prefill", [(0, 10, 10)]),
        ("prefill", [(1, 4, 4)]),
        ("decode", [(0, 1, 11), (1, 1, 5)]),
        ("decode", [(0, 1, 12), (1, 1, 6)]),
    ]
    cut = batch(rs, BatchLimits(token_budget=6, chunked=True))
    assert [(p.phase, [(s.request, s.queries, s.keys) for s in p.spans]) for p in cut.passes] == [
        ("prefill", [(0, 6, 6)]),
        ("prefill", [(0, 4, 10), (1, 2, 2)]),
        ("mixed", [(0, 1, 11), (1, 2, 4)]),
        ("decode", [(0, 1, 12), (1, 1, 5)]),
        ("decode", [(1, 1, 6)]),
    ]
    assert [p.outputs for p in cut.passes] == [0, 1, 2, 2, 1]


def test_a_request_waits_for_its_arrival():
    late = [Request(5, 2), Request(5, 2, arrival_ns=1000)]
    made = batch(late, BatchLimits(), lambda p: 10.0)
    assert [[s.request for s in p.spans] for p in made.passes] == [[0], [0], [1], [1]]


def test_speculation_by_hand():
    """Everything is taken: a round of two drafted tokens makes three."""
    made = batch([Request(5, 7)], BatchLimits(speculate=2, accept=1.0))
    shown = [(p.phase, [(s.queries, s.keys) for s in p.spans], p.outputs) for p in made.passes]
    one = [("draft", [(1, 6)], 1), ("draft", [(1, 7)], 1), ("decode", [(3, 8)], 3)]
    two = [("draft", [(1, 9)], 1), ("draft", [(1, 10)], 1), ("decode", [(3, 11)], 3)]
    assert shown == [("prefill", [(5, 5)], 1), ("draft", [(5, 5)], 0), *one, *two]
    none = batch([Request(5, 7)], BatchLimits(speculate=2, accept=0.0))
    assert sum(p.phase == "decode" for p in none.passes) == 6


# --- passes in closed form


def layer_flops(m: Model, tokens: int, pairs: int) -> int:
    """Products of one layer for all ranks: 2 x tokens x weights, and attention."""
    wide = (m.heads + 2 * m.kv) * m.head
    weights = m.hidden * wide + m.heads * m.head * m.hidden + 3 * m.hidden * m.ffn
    return 2 * tokens * weights + 2 * pairs * m.heads * 2 * m.head


def products(job: etude.Job) -> int:
    total = 0
    for rank in range(len(job)):
        t = job.trace(rank)
        codes, names = t.coded("name")
        wanted = np.array([n in ("aten::mm", "aten::bmm", "aten::_grouped_mm", VARLEN) for n in names] + [False])[codes]
        total += int(t.flops[wanted].sum())
    return total


@pytest.mark.parametrize("tp", [1, 2])
def test_products_and_bytes_of_prefill_and_decode(tp: int):
    batch_size, prompt, decode = 3, 10, 4
    found = serve(TINY, Plan(gpus=tp, tp=tp), Serving(prefill=prompt, decode=decode, batch=batch_size))
    m = TINY
    expected = m.layers * layer_flops(m, batch_size * prompt, batch_size * prompt * (prompt + 1) // 2)
    expected += sum(m.layers * layer_flops(m, batch_size, batch_size * (prompt + k + 1)) for k in range(decode))
    expected += (1 + decode) * 2 * batch_size * m.hidden * m.vocab  # logits of the last tokens
    assert products(found.job) == expected
    tokens = batch_size * (prompt + decode)
    reduced = tp * tokens * m.hidden * 2 * (2 * m.layers + 1)  # after attention, the feed-forward, the embedding
    gathered = (1 + decode) * batch_size * m.vocab * 2  # each rank gives its part
    assert found.summary()["comm_bytes_by_type"] == ({"all_reduce": reduced, "all_gather": gathered} if tp > 1 else {})
    kv = 2 * (m.kv // tp) * m.head * 2 * m.layers
    assert found.kv_bytes == batch_size * (prompt + decode + 1) * kv
    assert found.summary()["passes"] == {"prefill": 1, "decode": decode}
    assert found.params == m.vocab * m.hidden * 2 + m.hidden + m.layers * (
        m.hidden * (m.heads + 2 * m.kv) * m.head + m.heads * m.head * m.hidden + 3 * m.hidden * m.ffn + 2 * m.hidden
    )


def test_attention_of_decode_reads_the_cache():
    """bf16: queries and outputs, then keys and values of all tokens so far, and those of the pass written."""
    found = serve(TINY, Plan(), Serving(prefill=10, decode=1, batch=2))
    t = found.job.traces[0]
    codes, names = t.coded("name")
    rows = np.flatnonzero(codes == names.index(VARLEN))
    a_token = 2 * TINY.kv * TINY.head * 2
    one = 2 * 2 * TINY.heads * TINY.head * 2
    assert int(t.tensor_bytes[rows[-1]]) == one + a_token * (2 * 11 + 2)
    assert t.step[rows].tolist() == [0] * 4 + [1] * 4
    phases, words = t.coded("phase")
    assert [words[phases[r]] for r in rows] == ["prefill"] * 4 + ["decode"] * 4


def test_a_window_bounds_what_decode_reads():
    windowed = TINY.replace(window=4)

    def last(m: Model) -> int:
        t = serve(m, Plan(), Serving(prefill=10, decode=1)).job.traces[0]
        codes, names = t.coded("name")
        return int(t.flops[codes == names.index(VARLEN)][-1])

    assert last(TINY) == 2 * TINY.heads * 11 * 2 * TINY.head
    assert last(windowed) == 2 * TINY.heads * 4 * 2 * TINY.head


def test_attention_of_prompts_and_of_tokens_out_are_two_calls_of_two_classes():
    """A piece of 4 tokens after 8 others beside three sequences of 64 keys."""
    t = pass_job(TINY, Plan(), [PassShape(chunk=4, past=8, decode=3, keys=64)]).traces[0]
    codes, names = t.coded("name")
    rows = np.flatnonzero(codes == names.index(VARLEN))
    pairs = [4 * 8 + 1 + 2 + 3 + 4, 3 * 64]
    assert t.flops[rows].tolist() == [2 * TINY.heads * n * 2 * TINY.head for n in pairs] * TINY.layers
    ops = ops_of(t).take(rows[:2])
    assert ops.op_class.tolist() == [OpClass.ATTENTION, OpClass.ATTENTION_DECODE]
    assert (ops.m.tolist(), ops.n.tolist(), ops.batch.tolist()) == ([4, 1], [12, 64], [4, 3 * 4])


def test_few_tokens_read_the_experts_that_they_choose():
    """Of 4 experts a token chooses 2, two tokens meet 3 (4 x (1 - 1/2 x 1/2)), many all."""
    for tp, shapes in ((1, [(1, 2, 1), (2, 3, 2), (64, 4, 32)]), (2, [(2, 2, 1), (64, 2, 32)])):
        plan = Plan.from_dict({"gpus": tp, "tp": tp, "ep": tp} if tp > 1 else {})
        t = pass_job(EXPERTS, plan, [PassShape(chunk=n) for n, _, _ in shapes]).traces[0]
        ops = ops_of(t)
        for step, (_, read, rows) in enumerate(shapes):
            up = np.flatnonzero((ops.op_class == OpClass.GROUPED_GEMM) & (t.step == step))[0]
            assert (ops.batch[up], ops.m[up]) == (read, rows), (tp, step)
            assert ops.size_bytes[up] == 2 * read * (rows * 64 + rows * 64 + 64 * 64)  # 64 in, 2 x 32 out


def test_passes_that_are_padded_alike_read_the_experts_of_their_own_tokens():
    plan = Plan.from_dict({"gpus": 2, "tp": 2, "etp": 2})
    t = pass_job(EXPERTS, plan, [PassShape(chunk=1), PassShape(chunk=2)]).traces[0]
    ops = ops_of(t)
    grouped = ops.op_class == OpClass.GROUPED_GEMM
    assert [set(ops.batch[grouped & (t.step == step)].tolist()) for step in (0, 1)] == [{2}, {3}]


def test_latent_attention_keeps_the_compressed_form():
    found = serve(LATENT, Plan(), Serving(prefill=10, decode=3, batch=2))
    assert found.kv_bytes == 2 * 14 * (32 + 8) * 2 * LATENT.layers


def latent_core(shape: PassShape, model: Model = LATENT) -> tuple[int, int]:
    """FLOPs and bytes of the attention of one layer."""
    t = pass_job(model, Plan(), [shape]).traces[0]
    codes, words = t.coded("name")
    rows = np.flatnonzero((codes == words.index(VARLEN)) & (t.step == 0))
    return int(t.flops[rows[0]]), int(t.tensor_bytes[rows[0]])


def test_latent_attention_of_tokens_out_stays_compressed_and_prompts_are_expanded():
    """4 heads; a pair multiplies 24 + 16 times, or 40 + 32 at the rank of the keys, 32. A past token that is expanded
    multiplies 32 x (16 + 16) = 1,024 times a head. 80 bytes are kept of a token."""
    # A token out, 1,000 keys: all 1,000 pairs at the rank; reads 1,000 and writes one; 72 numbers go in and out.
    assert latent_core(PassShape(decode=1, keys=1000)) == (2 * 4 * 1000 * 72, 80 * 1001 + 2 * 4 * 72)
    # 200 tokens after 1,000: 200 x 1,000 + 200 x 201 / 2 = 220,100 pairs, 8,804,000 + 1,024,000 < 15,847,200.
    expanded = 2 * 4 * (220_100 * 40 + 1000 * 1024)
    assert latent_core(PassShape(chunk=200, past=1000)) == (expanded, 80 * 1400 + 2 * 4 * (200 + 2000) * 40)
    # 20 tokens after 1,000: 20,210 pairs, 808,400 + 1,024,000 > 1,455,120.
    assert latent_core(PassShape(chunk=20, past=1000))[0] == 2 * 4 * 20_210 * 72
    # Nothing before it: the prompt's own keys are expanded by the products before attention.
    assert latent_core(PassShape(chunk=200)) == (2 * 4 * 20_100 * 40, 80 * 400 + 2 * 4 * 200 * 40)


def test_a_piece_of_a_latent_prompt_costs_little_more_than_the_whole_prompt():
    """DeepSeek V3 on a layer's 128 heads: 8,192 tokens whole, and as the second half of 16,384; the second half has 3
    times the pairs and expands 8,192 x 512 x 256 besides."""
    model = open_model("deepseek-v3").replace(layers=1, dense_layers=1)
    pairs, second = 8192 * 8193 // 2, 8192 * 8192 + 8192 * 8193 // 2
    assert latent_core(PassShape(chunk=8192), model)[0] == 2 * 128 * pairs * 320
    found = latent_core(PassShape(chunk=8192, past=8192), model)[0]
    assert found == 2 * 128 * (second * 320 + 8192 * 512 * 256)


# --- whole jobs


@settings(max_examples=40)
@given(st.data())
def test_every_job_is_sound_and_ends(data: st.DataObject):
    m = data.draw(st.sampled_from([TINY, EXPERTS, LATENT]))
    tp, pp, dp = (data.draw(st.sampled_from([1, 2])) for _ in range(3))
    ep = data.draw(st.sampled_from([1, tp])) if m.experts else 1
    etp = tp // ep if m.experts else 1
    chunked = data.draw(st.booleans())
    serving = Serving(
        prefill=data.draw(st.integers(1, 30)),
        decode=data.draw(st.integers(0, 3)),
        batch=data.draw(st.integers(1, 4)),
        max_batch=data.draw(st.integers(0, 3)),
        token_budget=data.draw(st.integers(4, 32)) if chunked else 0,
        chunked=chunked,
        disaggregate="1:1" if dp == 2 and pp == 1 and data.draw(st.booleans()) else "",
        speculate=data.draw(st.sampled_from([0, 2])),
    )
    draft = DRAFT_MODEL if serving.speculate else None
    some = st.lists(st.builds(Request, st.integers(1, 20), st.integers(1, 4), st.integers(0, 10**6)), max_size=5)
    given_requests = data.draw(st.none() | some)
    device = data.draw(st.sampled_from([None, open_system("dgx-h100").device]))
    try:
        found = serve(m, Plan(gpus=tp * pp * dp, tp=tp, pp=pp, ep=ep, etp=etp), serving, requests=given_requests,
                      draft=draft, device=device)  # fmt: skip
    except UsageError as refused:
        assert draft is not None and (pp > 1 or serving.disaggregate), refused  # noqa: PT017
        return
    assert etude.check(found.job) == []
    assert etude.simulate(found.job, one_level("switch", 8), compute="roofline").makespan_ns > 0


def test_replicas_alike_share_a_program():
    found = serve(TINY, Plan(gpus=8, tp=2), Serving(prefill=8, decode=2))
    assert (len(found.job.traces), len(found.requests)) == (1, 4)


def test_keys_and_values_go_from_readers_to_makers():
    rs = [Request(10, 3), Request(20, 1), Request(30, 2)]
    found = serve(TINY, Plan(gpus=6, tp=2), Serving(disaggregate="1:2"), requests=rs)
    job = found.job
    a_token = 2 * (TINY.kv // 2) * TINY.head * 2 * TINY.layers
    sent = job.traces[0]
    rows = np.flatnonzero(sent.kind == Kind.SEND)
    assert sent.in_bytes[rows].tolist() == [10 * a_token, 30 * a_token]  # the second is done with its prompt
    assert job.peer_slots(0).tolist() == [2] and job.peer_slots(1).tolist() == [3]
    assert etude.check(job) == []


def test_arrivals_hold_back_passes():
    rs = [Request(8, 2), Request(8, 2, arrival_ns=10**9)]
    device = open_system("dgx-h100").device
    timed = serve(TINY, Plan(), Serving(), requests=rs, device=device)
    assert etude.simulate(timed.job, one_level("switch", 1)).makespan_ns >= 10**9
    free = serve(TINY, Plan(), Serving(), requests=rs)
    assert etude.simulate(free.job, one_level("switch", 1)).makespan_ns < 10**9


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"serving": Serving(speculate=2)}, "needs a draft model"),
        ({"plan": Plan(gpus=2, cp=2)}, "--cp applies only to training"),
        ({"plan": Plan(zero=3)}, "--zero applies only to training"),
        ({"plan": Plan(attention="unfused")}, "--attention applies only to training"),  # type: ignore[arg-type]
        ({"plan": Plan(host_ns=1000.0)}, "--host applies only to training"),
        ({"serving": Serving(disaggregate="1:2")}, "1 . 2 instances, but the plan has 1"),
        ({"serving": Serving(disaggregate="x")}, "disaggregate: column 1: `x`"),
        ({"serving": Serving(prefill=100, kv_memory_bytes=4096)}, "keys and values of 8 fit"),
        ({"serving": Serving(prefill=100, token_budget=50)}, "does not fit a pass of 50"),
        ({"model": open_model("bert-base")}, "decoders are served"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], problem: str):
    given_ = {"model": TINY, "plan": Plan(), "serving": Serving(), **change}
    with pytest.raises(UsageError, match=problem):
        serve(given_["model"], given_["plan"], given_["serving"])  # type: ignore[arg-type]


# --- when tokens come


@pytest.mark.parametrize(("pp", "split"), [(1, ""), (2, ""), (1, "1:1")])
def test_when_each_request_gets_its_tokens(pp: int, split: str):
    """The first token ends the prompt, the others come pass by pass, the last ends it all."""
    found = serve(
        TINY, Plan(gpus=2 if split else pp, pp=pp), Serving(prefill=16, decode=4, batch=2, disaggregate=split)
    )
    run = predict_serving(found, one_level("switch", 4))
    table = run.answers.to_pydict()
    assert table["output"] == [5, 5]
    for ttft, tpot, latency in zip(table["ttft_ns"], table["tpot_ns"], table["latency_ns"], strict=True):
        assert 0 < ttft < latency <= run.simulated.makespan_ns
        assert tpot == pytest.approx((latency - ttft) / 4)
    assert max(table["latency_ns"]) == run.simulated.makespan_ns
    said = run.summary()
    assert said["tokens_per_s"] == pytest.approx(10 / run.simulated.makespan_ns * 1e9)
    assert said["ttft_ns"]["p50"] <= said["ttft_ns"]["p99"]


def test_waiting_begins_with_the_arrival():
    rs = [Request(8, 2), Request(8, 1, arrival_ns=10**9)]
    timed = serve(TINY, Plan(), Serving(), requests=rs, device=open_system("dgx-h100").device)
    table = predict_serving(timed, one_level("switch", 1)).answers.to_pydict()
    assert table["ttft_ns"][1] < 10**8
    assert table["tpot_ns"][1] is None


# --- request traces


def test_requests_are_those_that_are_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Columns of Azure's files, compressed; a row that is early is refused by the same reader."""
    rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n", "2023-11-16 18:00:01.5,10,3\n", "2023-11-16 18:00:00,20,2\n"
    asked = ["predict", "qwen3-0.6b", "--serve", "--system", "dgx-h100", "--json", "--requests"]
    (tmp_path / "r.csv.gz").write_bytes(gzip.compress("".join((rows[0], rows[2], rows[1])).encode()))
    assert main([*asked, str(tmp_path / "r.csv.gz")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["requests"] == 2 and 1.5e9 < found["makespan_ns"] < 1.6e9
    (tmp_path / "r.csv").write_text("".join(rows))
    assert main([*asked, str(tmp_path / "r.csv")]) == 2
    assert "request 1: arrives at 2023-11-16 18:00:00, before the previous one" in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "r.csv").write_text("arrival,prompt,output\n0,100,3\n0.001,20,2\n")
    out = tmp_path / "job"
    args = ["generate", "llama3.2-1b", "--serve", "--tp", "2", "--json"]
    assert main([*args, "--requests", str(tmp_path / "r.csv"), "--system", "dgx-h100", "-o", str(out)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert {"ranks", "distinct_traces", "nodes", "flops", "params", "comm_bytes_by_type", "memory_peak_bytes"} <= set(
        said
    )
    assert (said["ranks"], said["requests"], said["prompt_tokens"]) == (2, 2, 120)
    assert etude.check(etude.open(out)) == []
    assert main([*args, "--prefill", "64", "--decode", "2", "--no-write"]) == 0
    assert json.loads(capsys.readouterr().out)["passes"] == {"prefill": 1, "decode": 2}
    assert main(["predict", *args[1:], "--prefill", "64", "--decode", "2", "--system", "dgx-h100"]) == 0
    assert json.loads(capsys.readouterr().out)["tpot_ns"]["mean"] > 0
    assert main(["generate", "llama3.2-1b", "--decode", "2", "--no-write"]) == 2
    assert "--decode is not read by `etude generate`" in capsys.readouterr().err
