"""Ownership maps: what is sent follows from who reads what; counted token by token, cell by cell."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.base.errors import EtudeError
from etude.machine import open_system
from etude.make.generate.maps.documents import blocks_of, cut, dealt_out
from etude.make.generate.maps.domain import Domain
from etude.make.generate.maps.items import Items, moved, transfers
from etude.make.generate.maps.packing import lpt, pack
from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.train.job import Generated, generate
from etude.make.generate.train.mapped import micro_batches, without
from etude.model.check.whole import check
from etude.model.schema import Kind
from etude.model.trace import Trace
from etude.run.simulate.run import simulate

TINY = Model(name="tiny", layers=2, hidden=64, heads=4, kv_heads=2, head_size=16, ffn=128, vocab=512, gated=True)
MAPS = ("contiguous", "zigzag", "lpt", "whole_first", "search")


def items_of(work: list[float], needs: list[list[int]], size: list[int] | None = None) -> Items:
    start = np.cumsum([0, *map(len, needs)])
    flat = np.array([j for row in needs for j in row], np.int64)
    return Items(np.array(work), np.array(size or [1] * len(work), np.int64), start, flat)


# -- items -------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_each_item_goes_once_to_each_rank_that_reads_it_and_has_it_not(data: st.DataObject):
    n, ranks = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    needs = [sorted(data.draw(st.sets(st.integers(0, n - 1)))) for _ in range(n)]
    owner = data.draw(st.lists(st.integers(0, ranks - 1), min_size=n, max_size=n))
    found = transfers(items_of([1.0] * n, needs), np.array(owner))
    naive = {(j, owner[j], owner[i]) for i in range(n) for j in needs[i] if owner[j] != owner[i]}
    assert sorted(zip(*(column.tolist() for column in found), strict=True)) == sorted(naive)


def test_a_ring_sends_all_keys_to_all_and_reads_up_to_the_borders_of_documents():
    """Two documents of 4 tokens on two ranks: runs of 2, of which rank 0 has the first and the last. It reads 3 pairs
    in each, and the 2 x 2 of its last run with the run before, which rank 1 has."""
    found = dealt_out([4, 4], "ring", 0, 2, 0.0)
    assert found.tokens.tolist() == [4, 4]
    assert found.pairs.tolist() == [[6, 4], [4, 6]]
    assert found.moved.tolist() == [[0, 4], [4, 0]]
    assert dealt_out([4, 4], "zigzag", 0, 2, 0.0).moved.tolist() == [[0, 2], [2, 0]]


def test_one_rank_sends_nothing():
    items = items_of([3.0, 2.0, 1.0], [[0, 1, 2]] * 3)
    for how in MAPS[:-1]:
        assert not moved(items, pack(how, items, np.zeros(3, np.int64), 1), 1).any()


def test_all_reading_all_is_a_ring():
    """Equal items, zigzag: every rank gets what the others have, which is what a ring sends."""
    ranks, tokens = 4, 8
    items = items_of([1.0] * 8, [list(range(8))] * 8, [tokens] * 8)
    owner = pack("zigzag", items, np.zeros(8, np.int64), ranks)
    assert owner.tolist() == [0, 1, 2, 3, 3, 2, 1, 0]
    table = moved(items, owner, ranks)
    ring = generate(TINY, Plan(gpus=ranks, cp=ranks, seq=8 * tokens))
    forward = sum(_bytes(ring, rank, "forward") for rank in range(ranks))
    assert forward == TINY.layers * int(table.sum()) * 2 * 2 * 16 * 2  # keys and values of 2 heads of 16, 2 bytes


def _bytes(found: Generated, rank: int, phase: str) -> int:
    trace = found.job.trace(rank)
    codes, words = trace.coded("phase")
    rows = (trace.kind == int(Kind.SEND)) & np.array([w == phase for w in words] + [False])[codes]
    return int(trace.in_bytes[rows].sum())


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(1, 3))
def test_longest_first_is_within_its_bound(work: list[int], ranks: int):
    best = min(
        max(sum(w for w, r in zip(work, owner, strict=True) if r == rank) for rank in range(ranks))
        for owner in product(range(ranks), repeat=len(work))
    )
    load = np.bincount(lpt(np.array(work, float), ranks), weights=work, minlength=ranks)
    assert load.sum() == sum(work)
    assert load.max() <= (4 / 3 - 1 / (3 * ranks)) * best + 1e-9


def test_longest_first_at_its_worst():
    """5, 5, 4, 4, 3, 3, 3 on three ranks: 11, and 9 is best."""
    load = np.bincount(lpt(np.array([5.0, 5, 4, 4, 3, 3, 3]), 3), weights=[5, 5, 4, 4, 3, 3, 3])
    assert load.max() == 11


# -- documents ---------------------------------------------------------------------------------------------------


def test_documents_are_cut_at_their_ends_and_between():
    blocks = blocks_of([5, 3], np.array([2, 4, 6]))
    found = list(zip(blocks.document.tolist(), blocks.start.tolist(), blocks.stop.tolist(), strict=True))
    assert found == [(0, 0, 2), (0, 2, 4), (0, 4, 5), (1, 0, 1), (1, 1, 3)]
    assert blocks.pairs.tolist() == [1 + 2, 3 + 4, 5, 1, 2 + 3]


def test_blocks_begin_with_their_documents():
    assert cut([5, 3], "lpt", 2, 2).tokens.tolist() == [2, 2, 1, 2, 1]


lists = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@settings(deadline=None, max_examples=80)
@given(lists, st.sampled_from(MAPS), st.integers(1, 4), st.integers(0, 9))
def test_tokens_and_pairs_are_those_of_the_documents(documents: list[int], how: str, ranks: int, block: int):
    found = dealt_out(documents, how, block, ranks, 0.1)
    assert found.tokens.sum() == sum(documents)
    assert found.pairs.sum() == sum(n * (n + 1) // 2 for n in documents)
    assert (found.moved.sum(axis=0) <= sum(documents) - found.tokens).all()


@settings(deadline=None, max_examples=60)
@given(lists, st.sampled_from(MAPS[:-1]), st.integers(1, 4), st.integers(1, 9))
def test_keys_are_counted_token_by_token(documents: list[int], how: str, ranks: int, block: int):
    blocks = cut(documents, how, block, ranks)
    owner = pack(how, blocks.items(0.1), blocks.document, ranks)
    of = {}
    for d, a, b, rank in zip(*(x.tolist() for x in (blocks.document, blocks.start, blocks.stop, owner)), strict=True):
        of |= {(d, t): rank for t in range(a, b)}
    needs = {(rank, d, k) for (d, t), rank in of.items() for k in range(t + 1)}
    table = np.zeros((ranks, ranks), int)
    for rank, d, k in needs:
        table[of[d, k], rank] += of[d, k] != rank
    pairs = np.zeros((ranks, ranks), int)
    for (d, t), rank in of.items():
        for k in range(t + 1):
            pairs[rank, of[d, k]] += 1
    found = dealt_out(documents, how, block, ranks, 0.1)
    assert found.moved.tolist() == table.tolist()
    assert found.pairs.tolist() == pairs.tolist()


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_one_document_in_equal_pieces(ranks: int):
    """Of (cp - 1) times all keys: half in a row, three quarters with an early and a late piece each."""
    whole = (ranks - 1) * 64 * ranks
    assert dealt_out([64 * ranks], "contiguous", 0, ranks, 0.0).moved.sum() * 2 == whole
    assert dealt_out([64 * ranks], "zigzag", 0, ranks, 0.0).moved.sum() * 4 == 3 * whole
    even = dealt_out([64 * ranks], "zigzag", 0, ranks, 0.0)
    assert len(set(even.pairs.sum(axis=1).tolist())) == 1


@pytest.mark.parametrize("how", ["whole_first", "search"])
def test_documents_that_pack_whole_send_nothing(how: str):
    """Of seq / (cp k): 4 ranks, 3 documents each."""
    found = dealt_out([32] * 12, how, 4, 4, 0.01)
    assert not found.moved.any()
    assert found.pairs.tolist() == np.diag([3 * 32 * 33 // 2] * 4).tolist()
    assert found.tokens.tolist() == [96] * 4


def test_a_document_that_is_too_long_is_cut():
    found = dealt_out([60, 10, 10], "whole_first", 5, 2, 0.0)
    assert found.tokens.tolist() == [40, 40]
    assert 0 < found.moved.sum() < 60


# -- jobs --------------------------------------------------------------------------------------------------------

PACKED = {"lengths": "16:0.5,48:0.3,96:0.2", "batching": "packed"}
CASES: dict[str, dict[str, Any]] = {
    "one document": {},
    "packed": PACKED,
    "two sequences": {**PACKED, "micro_batch": 2},
    "lengths": {"lengths": "32:0.5,96:0.5"},
    "whole": {"lengths": "24", "batching": "packed"},
    "tensor parallel": {**PACKED, "tp": 2, "gpus": 8},
    "pipeline": {**PACKED, "pp": 2, "gpus": 8, "recompute": "full"},
    "copies": {**PACKED, "gpus": 8, "zero": 3, "global_batch": 4},
    "a host": {**PACKED, "host": "2us"},
    "two steps": {**PACKED, "steps": 2},
}


def made(how: str, **plan: Any) -> Generated:
    return generate(TINY, Plan.from_dict({"gpus": 4, "cp": 4, "seq": 96, "cp_map": how, **plan}))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("how", MAPS)
def test_jobs_with_maps_are_sound_and_run(how: str, case: str):
    job = made(how, **CASES[case]).job
    assert list(check(job)) == []
    done = simulate(job, open_system("dgx-h100").for_ranks(job.world_size))
    assert not done.timing.partial


@pytest.mark.parametrize("case", ["one document", "packed", "two sequences", "lengths", "copies"])
@pytest.mark.parametrize("how", MAPS[:-1])
def test_a_job_does_what_its_map_says(how: str, case: str):
    """Keys go once forward and once backward, their gradients back; attention has the pairs of the documents."""
    found = made(how, **CASES[case])
    plan = found.plan
    documents = list(micro_batches(plan))
    pairs = sum(n * (n + 1) // 2 for batch in documents for n in batch)
    tokens = sum(map(sum, documents))
    ranks = range(plan.gpus)
    work = sum(_flops(found.job.trace(r), ("attention.core", ".1", ".2", ".3")) for r in ranks)
    assert work == pytest.approx(TINY.layers * 4 * pairs * 16 * 14, rel=1e-3)
    products = sum(_flops(found.job.trace(r), ("attention.qkv", "ffn.up")) for r in ranks)
    assert products == pytest.approx(TINY.layers * 6 * tokens * (64 * 128 + 64 * 256), rel=1e-3)
    assert found.mapped is not None
    sent = sum(_bytes(found, r, phase) for r in ranks for phase in ("forward", "backward-input"))
    assert sent == 3 * TINY.layers * int(found.mapped.moved.sum()) * 2 * 2 * 16 * 2
    if found.dealt:
        assert found.dealt.pairs.sum() == pairs
        assert found.dealt.tokens.sum() == tokens


def _flops(trace: Trace, ends: tuple[str, ...]) -> int:
    codes, words = trace.coded("module")
    rows = np.array([w.endswith(ends) for w in words] + [False])[codes] & (trace.kind == int(Kind.COMP))
    return int(trace.flops[rows].sum())


def test_documents_whole_on_a_rank_leave_no_message():
    job = made("whole_first", lengths="24", batching="packed").job
    assert not any((t.kind == int(Kind.SEND)).any() or (t.kind == int(Kind.RECV)).any() for t in job.traces)


def test_rows_that_are_gone_keep_the_order_of_the_rest():
    """Whoever waited for another, however far behind, still does, unless it was through a message."""
    trace = generate(TINY, Plan(gpus=4, cp=4, seq=32, cp_map="zigzag")).job.traces[0]
    codes, words = trace.coded("module")
    keep = ~np.array([".far." in w or w.endswith((".keys", ".back", ".core.sum")) for w in words] + [False])[codes]
    left = without(trace, keep)
    works = trace.kind == int(Kind.COMP)
    before, after = _closure(trace), _closure(left)
    rows = np.flatnonzero(keep & works)
    at = (np.cumsum(keep) - 1)[rows]
    assert (before[np.ix_(rows, rows)] <= after[np.ix_(at, at)]).all()
    assert len(left) == keep.sum() < len(trace)


def _closure(trace: Trace) -> np.ndarray[Any, np.dtype[np.bool_]]:
    n = len(trace)
    found = np.zeros((n, n), bool)
    for row in range(n):  # rows stand behind what they wait for
        for which in ("data", "ctrl"):
            start, edges = getattr(trace, f"{which}_start"), getattr(trace, which)
            for other in edges[start[row] : start[row + 1]].tolist():
                found[row] |= found[other]
                found[row, other] = True
    return found


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"cp": 1}, "context-parallel ranks"),
        ({"cp_kind": "ulysses"}, "its own messages"),
        ({"cp_map": "none", "block": 4}, "block needs a map"),
        ({"recompute": "selective"}, "recompute whole layers"),
        ({"cp_map": "spiral"}, "unknown value"),
        ({"lengths": "8:1,16:1", "batching": "tokens"}, "batching"),
    ],
)
def test_what_is_no_map_is_refused(plan: dict[str, Any], words: str):
    with pytest.raises(EtudeError, match=words):
        made("lpt", **plan)


# -- fields ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("field", "grid", "radius"), [((12, 18), (3, 3), 2), ((9, 10), (2, 3), 1), ((7,), (3,), 1),
                                                        ((6, 6, 6), (2, 1, 3), 2)])  # fmt: skip
def test_halos_are_counted_cell_by_cell(field: tuple[int, ...], grid: tuple[int, ...], radius: int):
    domain = Domain(field, grid)
    owner = {}
    for rank in range(domain.ranks):
        for cell in product(*(range(a, b) for a, b in domain.tile(rank))):
            assert cell not in owner
            owner[cell] = rank
    assert len(owner) == np.prod(field)
    table = np.zeros((domain.ranks, domain.ranks), int)
    for rank in range(domain.ranks):
        around = (
            range(max(a - radius, 0), min(b + radius, f)) for (a, b), f in zip(domain.tile(rank), field, strict=True)
        )
        for cell in product(*around):
            table[owner[cell], rank] += owner[cell] != rank
    assert domain.halo(radius).tolist() == table.tolist()


def test_the_halo_of_a_tile_inside():
    """2 h (a + b) + 4 h² around a tile of a x b; less at the border of the field."""
    halo = Domain((30, 60), (3, 3)).halo(2).sum(axis=0)
    assert halo[4] == 2 * 2 * (10 + 20) + 4 * 4
    assert halo[0] == 2 * (10 + 20) + 4
    assert Domain((30, 60), (1, 1)).halo(2).sum() == 0


def test_a_field_that_has_no_tiles_is_refused():
    with pytest.raises(EtudeError, match="no tile"):
        Domain((4, 4), (8, 1))


# -- pictures ----------------------------------------------------------------------------------------------------

PICTURE = Model(name="net", family="convnet", depths=(1, 1), image=64, classes=10)  # type: ignore[arg-type]


def tiled(domain: str, ranks: int, **plan: Any) -> Generated:
    given = {"gpus": ranks, "cp": ranks, "micro_batch": 2, "domain": domain, **plan}
    return generate(PICTURE, Plan.from_dict(given if ranks > 1 else {"micro_batch": 2}))


READS = [(3, 64, 3), (64, 16, 1), (128, 16, 1)]
"""Channels, side and radius of what each convolution reads that sees more than a point: 7x7, 3x3 in two blocks."""


@pytest.mark.parametrize(("domain", "ranks"), [("1x2", 2), ("2x2", 4), ("4x2", 8), ("4x4", 16)])
def test_halos_of_a_network_are_those_of_its_fields(domain: str, ranks: int):
    """Forward each rank gets its halo, backward it returns the gradients; two bytes a value, two samples."""
    found = tiled(domain, ranks)
    rows, columns = (int(n) for n in domain.split("x"))
    for phase, order in (("forward", 0), ("backward-input", 1)):
        for rank in range(ranks):
            size = 0
            for channels, side, radius in READS:
                halo = Domain((side, side), (rows, columns)).halo(radius)
                size += 2 * 2 * channels * int(halo.sum(axis=1 - order)[rank])
            assert _bytes(found, rank, phase) == size


def test_tiles_share_the_work_of_a_picture():
    whole, parts = tiled("", 1), tiled("4x2", 8)
    ends = ("conv1", "conv2", "conv3", "stem", "shortcut")
    one = _flops(whole.job.trace(0), ends)
    assert [_flops(parts.job.trace(r), ends) for r in range(8)] == [one // 8] * 8
    assert parts.memory[0].weights == whole.memory[0].weights
    assert (
        whole.memory[0].activation_bytes / 8 < parts.memory[0].activation_bytes < whole.memory[0].activation_bytes / 3
    )


@pytest.mark.parametrize("plan", [{}, {"gpus": 16, "zero": 3}, {"gpus": 16, "pp": 2}, {"host": "2us"}])
def test_jobs_of_tiles_are_sound_and_run(plan: dict[str, Any]):
    job = tiled("4x2", 8, **plan).job
    assert list(check(job)) == []
    assert not simulate(job, open_system("dgx-h100").for_ranks(job.world_size)).timing.partial


@pytest.mark.parametrize(
    ("domain", "ranks", "words"),
    [
        ("2", 2, "domain: column 1: `2` is not two numbers"),
        ("2x2", 2, "match cp 2"),
        ("3x1", 3, "cannot be cut into equal tiles"),
        ("32x1", 32, "smaller than"),
    ],
)
def test_what_is_no_domain_is_refused(domain: str, ranks: int, words: str):
    with pytest.raises(EtudeError, match=words):
        tiled(domain, ranks)


def test_a_text_has_no_domain():
    with pytest.raises(EtudeError, match="only to images"):
        generate(TINY, Plan(gpus=2, cp=2, domain="1x2", seq=32))


# -- unequal parts -----------------------------------------------------------------------------------------------


def _naive_parts(shares: list[int], how: str) -> tuple[list[int], np.ndarray]:
    """Owner of each token, and pairs by (owner of the query, owner of the key), token by token."""
    owner: list[int] = []
    if how == "zigzag":
        for rank, share in enumerate(shares):
            owner += [rank] * (share // 2)
        for rank, share in reversed(list(enumerate(shares))):
            owner += [rank] * (share - share // 2)
    else:
        for rank, share in enumerate(shares):
            owner += [rank] * share
    pairs = np.zeros((len(shares), len(shares)), np.int64)
    for query in range(len(owner)):
        for key in range(query + 1):
            pairs[owner[query], owner[key]] += 1
    return owner, pairs


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.sampled_from(["contiguous", "zigzag"]))
def test_unequal_parts_token_by_token(shares: list[int], how: str):
    owner, pairs = _naive_parts(shares, how)
    dealt = dealt_out([len(owner)], how, 0, len(shares), 1.0, tuple(shares))
    assert dealt.tokens.tolist() == shares
    assert dealt.pairs.tolist() == pairs.tolist()
    assert dealt.pairs.sum() == len(owner) * (len(owner) + 1) // 2


def test_causal_work_is_in_proportion_to_unequal_parts():
    shares = (600, 200, 400)
    dealt = dealt_out([1200], "zigzag", 0, 3, 1.0, shares)
    part = dealt.pairs.sum(axis=1) / dealt.pairs.sum()
    assert part == pytest.approx(np.array(shares) / 1200, rel=0.01)


def test_equal_shares_are_the_map_without():
    usual = Plan(gpus=4, cp=4, seq=64, cp_map="zigzag")
    one, other = generate(TINY, usual), generate(TINY, usual.replace(cp_shares=(16,) * 4))
    for rank in range(4):
        for name in ("flops", "in_bytes", "tensor_bytes"):
            assert getattr(one.job.trace(rank), name).tolist() == getattr(other.job.trace(rank), name).tolist()


def test_operations_of_unequal_parts_add_up():
    usual = Plan(gpus=4, cp=4, seq=64, cp_map="zigzag")
    one, other = generate(TINY, usual), generate(TINY, usual.replace(cp_shares=(28, 4, 20, 12)))
    assert check(other.job) == []
    sums = [sum(int(f.job.trace(r).flops.clip(0).sum()) for r in range(4)) for f in (one, other)]
    assert sums[1] == pytest.approx(sums[0], rel=0.02)  # rows of a few operations are rounded up
    assert other.memory_peak_bytes > one.memory_peak_bytes


def test_heads_and_tokens_of_ulysses():
    """Attention goes with heads, products with tokens: 3 of 4 heads and a quarter of the tokens."""
    wide = TINY.replace(kv_heads=4)
    usual = Plan(gpus=2, cp=2, seq=64, cp_kind="ulysses")
    one, other = generate(wide, usual), generate(wide, usual.replace(cp_shares=(16, 48), cp_heads=(3, 1)))
    assert check(other.job) == []
    before, after = one.job.trace(0), other.job.trace(0)
    codes, words = before.coded("module")
    core = np.array([w.endswith("attention.core") for w in words] + [False])[codes]
    product = np.array([w.endswith("qkv") for w in words] + [False])[codes]
    for rows, factor in ((core, 1.5), (product, 0.5)):
        work = rows & (before.flops > 100)
        assert work.any()
        assert after.flops[work] == pytest.approx(before.flops[work] * factor)
    simulate(other.job, open_system("dgx-h100"))


@pytest.mark.parametrize(
    "plan, told",
    [
        ({"cp_map": "zigzag", "cp_shares": (32, 16)}, "context-parallel ranks"),
        ({"cp_map": "zigzag", "cp_shares": (40, 8, 8, 0)}, "context-parallel ranks"),
        ({"cp_map": "zigzag", "cp_shares": (16, 16, 16, 15)}, "add up to 63 of 64"),
        ({"cp_map": "lpt", "cp_shares": (16,) * 4}, "runs of one sequence"),
        ({"cp_shares": (16,) * 4}, "runs of one sequence"),
        ({"cp_map": "zigzag", "cp_shares": (16,) * 4, "cp_heads": (1,) * 4}, "ulysses attention"),
        ({"cp_map": "zigzag", "cp_shares": (16,) * 4, "micro_batch": 2, "global_batch": 2}, "runs of one sequence"),
        ({"cp_kind": "ulysses", "cp_heads": (2, 1, 1, 1)}, "add up to 5 of 4"),
        ({"cp_kind": "ulysses", "cp_shares": (16,) * 4, "lengths": "32"}, "sequences of one length"),
    ],
)
def test_unequal_parts_that_cannot_be(plan: dict[str, Any], told: str):
    with pytest.raises(EtudeError, match=told):
        generate(TINY.replace(kv_heads=4), Plan(**{"gpus": 4, "cp": 4, "seq": 64, **plan}))
