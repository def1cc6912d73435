"""A pass of a served model as ops: parts that depend only on tokens are built once, attention is filled in pass by
pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from etude.cost import ops as work
from etude.cost.aten_matrix import VARLEN
from etude.cost.ops import OpClass, Work
from etude.kernels.arrays import I64
from etude.make.generate.blocks import recurrent, sparse, transformer
from etude.make.generate.blocks.ops import Op, Phase, Stream, bytes_of, collective, compute, shapes
from etude.make.generate.blocks.shard import Block, Shard
from etude.make.generate.model.shape import Mixer, Model
from etude.make.generate.nodes import Book
from etude.make.generate.serving.batching import ModelPass, Span
from etude.make.generate.train.fragment import Emitter, Fragment
from etude.model.schema import Collective


@dataclass(frozen=True, slots=True)
class RankModel:
    """A model on one serving rank."""

    model: Model
    local: Shard
    """Shard of the plan; tokens are those of each pass."""
    kv_dtype: str

    @property
    def kv_bytes(self) -> int:
        """Keys and values of one token in one layer on one rank."""
        m = self.model
        if not m.heads:
            return 0
        if m.kv_rank:
            index = bytes_of(m.index_size, sparse.DTYPE) if m.index_top else 0
            return bytes_of(m.kv_rank + m.rope_size, self.kv_dtype) + index
        return bytes_of(2 * max(m.kv // self.local.tp, 1) * m.head, self.kv_dtype)

    def kv_layers(self, layers: range) -> int:
        """Which of these layers have keys and values."""
        return sum(self.model.mixer_of(i) == Mixer.ATTENTION for i in layers)

    def state_bytes(self, layers: range) -> int:
        """State of a sequence in these layers, whatever its length."""
        return sum(recurrent.state_bytes(self.model, self.model.mixer_of(i), self.local.tp) for i in layers)

    def padded(self, tokens: int) -> int:
        """Tokens of a pass, rounded up to what the ranks can share."""
        parts = self.local.tp if self.local.sp else 1
        return max(-(-tokens // parts), 1) * parts

    def layers(self, tokens: int) -> list[Block]:
        """Embedding and layers for this many tokens; attention has no figures yet."""
        local = replace(self.local, samples=1, seq=self.padded(tokens), real=tokens, training=False)
        # Towers run once per image, not in passes.
        blocks = transformer.blocks(self.model.replace(predict_layers=0), local)[:-1]
        alike = {id(b.ops): tuple(_served(op) for op in b.ops) for b in {id(b.ops): b for b in blocks}.values()}
        return [Block(b.name, alike[id(b.ops)], b.out_bytes) for b in blocks]

    def head(self, tokens: int, outputs: int) -> Block:
        """Logits of the sampled tokens, gathered from the ranks, and the sampling."""
        if not outputs:
            return Block("head", (), 0)
        local = replace(self.local, samples=1, seq=outputs, sp=False, training=False)
        ops = [_served(op) for op in transformer.head(self.model, local) if op.part != "loss"]
        if self.local.sp:
            full = bytes_of(self.padded(tokens) * self.model.hidden, local.dtype)
            ops.insert(
                0, collective(Collective.ALL_GATHER, "tp", local.tp, full, "gather", Stream.TENSOR, dtype=local.dtype)
            )
        vocab = self.model.vocab
        if local.tp > 1:
            full = bytes_of(outputs * transformer.vocab_of(self.model, local) * local.tp, local.dtype)
            ops.append(
                collective(Collective.ALL_GATHER, "tp", local.tp, full, "logits", Stream.TENSOR, dtype=local.dtype)
            )
        w = work.softmax(outputs, vocab, dtype="fp32")
        ops.append(compute("aten::multinomial", "sample", w, shapes((outputs, vocab)), shapes((outputs, 1))))
        return Block("head", tuple(ops), 8 * outputs)

    def spanned(self, spans: Sequence[Span], unit: str, detail: str, part: str) -> Op:
        """An op whose work depends on the sequences of a pass: attention in a window, a state, an index."""
        queries = [s.queries for s in spans]
        if unit == "state":
            return _served(recurrent.core(self.model, Mixer(detail), self.local.tp, queries, self.local.dtype, part))
        if unit == "index":
            pairs = sum(_pairs(s.queries, s.keys, 0) for s in spans)
            return _served(sparse.scores(self.model, pairs, sum(queries), sum(s.keys for s in spans)))
        return self.attention(spans, int(detail), part)

    def attention(self, spans: Sequence[Span], window: int, part: str) -> Op:
        """Attention of all sequences of a pass: keys and values of the past are read, those of the pass written."""
        m, dtype = self.model, self.local.dtype
        window = window or m.index_top
        heads = m.heads // self.local.tp
        queries = np.array([s.queries for s in spans], np.int64)
        keys = np.array([s.keys for s in spans], np.int64)
        pairs = np.array([_pairs(s.queries, s.keys, window) for s in spans], np.int64)
        key_size, value_size = (m.nope_size + m.rope_size, m.value_size) if m.kv_rank else (m.head, m.head)
        read = np.minimum(keys, window + queries) if window else keys
        size = self.kv_bytes * int(read.sum() + queries.sum())
        if m.kv_rank:
            products, moved = self._latent(queries, read, pairs)
        else:
            products, moved = pairs * (key_size + value_size), queries * (key_size + value_size)
        flops = 2 * heads * int(products.sum())
        size += bytes_of(heads * int(moved.sum()), dtype)
        w = Work(op_class=OpClass.ATTENTION, flops=flops, size_bytes=size, dtype=dtype)
        kv = heads if m.kv_rank else max(m.kv // self.local.tp, 1)
        total, held = int(queries.sum()), int(read.sum())
        ins = shapes((total, heads, key_size), (held, kv, key_size), (held, kv, value_size), (len(spans) + 1,))
        return compute(VARLEN, part, w, ins, shapes((total, heads, value_size)))

    def _latent(self, queries: I64, keys: I64, pairs: I64) -> tuple[I64, I64]:
        """For each sequence, per head: multiplications, and numbers moved in addition to the compressed keys and
        values.

        The past is attended to in compressed form, with queries and results of the rank of the keys (decodes), or its
        keys and values are expanded first (prompts): whichever has fewer multiplications. A sparse kernel picks among
        compressed keys. Projecting queries to the rank costs as much as expanding new keys, which the products before
        attention include."""
        m = self.model
        past = keys - queries
        size, rank = m.nope_size + m.rope_size + m.value_size, 2 * m.kv_rank + m.rope_size
        expanded = pairs * size + past * m.kv_rank * (m.nope_size + m.value_size)
        compressed = (past > 0) & ((pairs * rank < expanded) | bool(m.index_top))
        # Expanded keys and values are written once and read once.
        moved = np.where(compressed, queries * rank, (queries + 2 * past) * size)
        return np.where(compressed, pairs * rank, expanded), moved


def _pairs(queries: int, keys: int, window: int) -> int:
    """Pairs of query and key: each new token sees itself and those before it."""
    past = keys - queries
    total = queries * past + queries * (queries + 1) // 2
    if window and keys > window:
        over = keys - window
        rows = min(over, queries)
        total -= rows * (over - rows) + rows * (rows + 1) // 2
    return total


def _served(op: Op) -> Op:
    return op.replace(backward=(), saved_bytes=0, temp_bytes=0)


@dataclass(frozen=True, slots=True, eq=False)
class _Template:
    fragment: Fragment
    spanned: dict[tuple[str, str, str, bool | None], list[int]]
    """Unit, window or kind of state, part, and which sequences (prompts, decodes; None: all) -> rows whose work depends
    on them."""


class PassFragments:
    """Fragments of passes on one pipeline stage. Passes with equally many tokens share everything but attention."""

    def __init__(self, served: RankModel, book: Book, layers: range) -> None:
        self.served, self.book, self.layers = served, book, layers
        self._made: dict[tuple[int, int, Phase], _Template] = {}

    def fragment(self, one: ModelPass) -> Fragment:
        phase = Phase[one.phase.upper()]
        # Padding is computed as well, but fewer tokens use fewer experts.
        tokens = one.tokens if self.served.model.experts else self.served.padded(one.tokens)
        key = tokens, one.outputs, phase
        if key not in self._made:
            self._made[key] = self._template(one, phase)
        template = self._made[key]
        op = template.fragment.op.copy()
        for (unit, detail, part, prompt), rows in template.spanned.items():
            spans = one.spans if prompt is None else [s for s in one.spans if s.prompt == prompt]
            op[rows] = self.book.op(self.served.spanned(spans, unit, detail, part), phase)
        return replace(template.fragment, op=op)

    def _template(self, one: ModelPass, phase: Phase) -> _Template:
        emitter = Emitter(self.book)
        spanned: dict[tuple[str, str, str, bool | None], list[int]] = {}
        for block in self.blocks(one):
            number = int(block.name.partition(".")[2] or 0)
            details = {
                "attention": str(self.served.model.window_of(number)),
                "state": str(self.served.model.mixer_of(number)),
                "index": "",
            }
            for op in block.ops:
                # Attention of prompts and of decodes are two calls: one is bound by compute, the other by memory.
                apart = op.unit == "attention" and phase == Phase.MIXED
                for prompt in (True, False) if apart else (None,):
                    if op.unit in details:
                        key = op.unit, details[op.unit], op.part, prompt
                        spanned.setdefault(key, []).append(len(emitter.op))
                    emitter.add(op, block.name, phase)
        return _Template(emitter.done([], [], []), spanned)

    def blocks(self, one: ModelPass) -> list[Block]:
        embedding, *layers = self.served.layers(one.tokens)
        first, last = self.layers.start == 0, self.layers.stop == len(layers)
        found = ([embedding] if first else []) + layers[self.layers.start : self.layers.stop]
        return found + ([self.served.head(one.tokens, one.outputs)] if last else [])
