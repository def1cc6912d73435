"""What a training step of a decoder amounts to, worked out tensor by tensor from the model and the plan: who holds
what, who computes what, who sends what, and what is in memory when.

Nothing of the generator is in here. Of Etude it takes the fields of a model and a plan as they were given, and of a
schedule the order of its actions. Dense, mixture and latent-attention decoders; every figure is of one pipeline rank,
because the ranks of a stage do the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

WIDTH = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
FORWARD, BACKWARD, INPUT, WEIGHT = 1, 2, 3, 4
"""Actions of a schedule."""


class Weights(NamedTuple):
    """Weights of one thing in a block: those of a rank, and of whose gradient each rank of a group makes a part."""

    count: int
    expert: bool = False
    summed: str = ""
    """tp, or kvN: N neighbours."""
    cast: bool = False
    """A product's, cast to 8 bits where products are."""


class Thing(NamedTuple):
    """One thing of a block in the order of the forward pass: bytes that it keeps, and again without recomputation,
    its weights, and bytes beside it forward and backward."""

    keeps: int
    full: int
    weights: tuple[Weights, ...] = ()
    beside: int = 0
    beside_back: int = 0


@dataclass
class Piece:
    """A block: embedding, layer, head, or a layer that predicts further."""

    things: list[Thing] = field(default_factory=list)
    products: int = 0
    """Operations of products forward; backward twice as many, but for attention."""
    attention: int = 0
    attention_back: int = 0
    forward: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """(group, collective or send, bytes that a rank gives) -> times."""
    backward: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    core: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    """The part of `forward` that belongs to the core of attention."""
    whole: int = 0
    """Parameters of the model in it."""
    out_bytes: int = 0
    layer: bool = False
    table: int = 0
    """Weights of the embedding that it uses but does not count as its own."""

    def weights(self, expert: bool) -> int:
        return sum(w.count for t in self.things for w in t.weights if w.expert == expert)


class Hand:
    """All of it for a model and a plan, both as given."""

    def __init__(self, m: Any, p: Any, actions: list[list[tuple[int, int, int]]], held: list[list[int]]) -> None:
        """`actions` of each pipeline rank: (action, stage, micro-batch); `held`: its stages."""
        self.m, self.p, self.actions, self.held = m, p, actions, held
        self.dp = p.gpus // (p.tp * p.cp * p.pp)
        self.batch = p.global_batch // (self.dp * p.micro_batch)
        self.sp = p.tp > 1 and p.sp is not False
        self.act = "bf16" if p.precision == "fp8" else str(p.precision)
        self.w, self.g = WIDTH[self.act], WIDTH[str(p.precision)]
        self.tokens = p.micro_batch * p.seq // p.cp
        self.rows = self.tokens // p.tp if self.sp else self.tokens
        self.grad = WIDTH[p.grad_dtype]
        parts = str(p.recompute).partition(":")[2].split(",") if ":" in p.recompute else []
        self.again = {"none": [], "selective": ["attention"], "full": ["layer"]}.get(p.recompute, parts)
        pieces = self.pieces()
        self.stages = self.cut(pieces)
        self.copies()

    # -- the model, piece by piece ---------------------------------------------------------------------------------

    def pieces(self) -> list[Piece]:
        m = self.m
        found = [self.embedding()]
        for i in range(m.layers):
            experts = m.experts and i >= m.dense_layers and (i + 1) % m.moe_every == 0
            window = m.window if i % m.window_every == 0 and not (m.full_every and (i + 1) % m.full_every == 0) else 0
            found.append(self.layer(bool(experts), window))
        found.append(self.head())
        return found + [self.predicts(found[-2]) for _ in range(m.predict_layers)]

    @property
    def vocab(self) -> int:
        return ceil(self.m.vocab / self.p.tp)

    def normed(self, piece: Piece, user_keeps: int = 0) -> None:
        """Weights that all tensor-parallel ranks have; each sees its own rows if tokens are spread."""
        size = self.m.hidden * (2 if self.m.norm == "layer" else 1)
        keeps = self.rows * self.m.hidden * self.w
        piece.things.append(Thing(keeps, keeps, (Weights(size, summed="tp" if self.sp else ""),)))
        piece.whole += size

    def embedding(self) -> Piece:
        m, p = self.m, self.p
        piece = Piece(out_bytes=self.rows * m.hidden * self.w, whole=m.vocab * m.hidden)
        piece.things.append(Thing(8 * self.tokens, 8 * self.tokens, (Weights(self.vocab * m.hidden),)))
        self.spread_tokens(piece)
        if m.positions == "learned":
            table = (m.max_positions or p.seq) * m.hidden
            piece.things.append(Thing(0, 0, (Weights(table, summed="tp" if self.sp else ""),)))
            piece.whole += table
        return piece

    def spread_tokens(self, piece: Piece) -> None:
        """Rows of a split table are partial sums."""
        full = self.tokens * self.m.hidden * self.w
        if self.sp:
            piece.forward["tp", "reduce_scatter", full] += 1
            piece.backward["tp", "all_gather", full // self.p.tp] += 1
        elif self.p.tp > 1:
            piece.forward["tp", "all_reduce", full] += 1

    def split_out(self, piece: Piece, deep: int, *, wide: int | None = None, pieces: int = 0) -> None:
        """A product split by its outputs: every rank needs all tokens, and has a part of its input's gradient."""
        g = self.g if wide is None else wide
        if self.p.tp == 1:
            return
        for part in self.chunks(pieces):
            if self.sp:
                piece.forward["tp", "all_gather", part * deep * g // self.p.tp] += 1
                piece.backward["tp", "reduce_scatter", part * deep * self.w] += 1
            else:
                piece.backward["tp", "all_reduce", part * deep * self.w] += 1
        if self.sp:
            piece.backward["tp", "all_gather", self.tokens * deep * g // self.p.tp] += 1

    def split_in(self, piece: Piece, out: int) -> None:
        """A product split by its inputs: partial sums, whose gradient every rank needs."""
        if self.p.tp == 1:
            return
        for part in self.chunks(0):
            if self.sp:
                piece.forward["tp", "reduce_scatter", part * out * self.w] += 1
                piece.backward["tp", "all_gather", part * out * self.g // self.p.tp] += 1
            else:
                piece.forward["tp", "all_reduce", part * out * self.w] += 1

    def chunks(self, pieces: int) -> list[int]:
        n = pieces or self.p.tp_chunks
        return [self.tokens * (i + 1) // n - self.tokens * i // n for i in range(n)]

    def product(
        self, piece: Piece, rows: int, weights: int, keeps: int, held: tuple[Weights, ...], use: str = ""
    ) -> None:
        """A product over so many rows with so many weights. `use`: what its input comes from and is made again by."""
        piece.products += 2 * rows * weights
        held = tuple(w._replace(cast=self.p.precision == "fp8") for w in held)
        piece.things.append(Thing(0 if use in self.again else keeps, keeps, held))

    def in_16_bits(self, piece: Piece) -> None:
        """The product that came last is done as activations are."""
        last = piece.things[-1]
        piece.things[-1] = last._replace(weights=tuple(w._replace(cast=False) for w in last.weights))

    def layer(self, experts: bool, window: int) -> Piece:
        piece = Piece(out_bytes=self.rows * self.m.hidden * self.w, layer=True)
        self.normed(piece)
        (self.latent if self.m.kv_rank else self.attention)(piece, window)
        self.normed(piece)
        (self.mixture if experts else self.feed_forward)(piece)
        if "layer" in self.again:
            piece.things = [t._replace(keeps=piece.out_bytes if i == 0 else 0) for i, t in enumerate(piece.things)]
        return piece

    def attention(self, piece: Piece, window: int) -> None:
        m, p, h = self.m, self.p, self.m.hidden
        d = m.head_size or h // m.heads
        every = m.kv_heads or m.heads
        heads, kv = m.heads // p.tp, max(every // p.tp, 1)
        each = h + 1 if m.bias else h  # a bias is a row more
        piece.whole += each * (m.heads + 2 * every) * d
        held = [Weights(each * heads * d)]
        held.append(Weights(each * 2 * kv * d, summed=f"kv{p.tp // every}" if p.tp > every else ""))
        self.product(piece, self.tokens, h * (heads + 2 * kv) * d, self.rows * h * self.g, tuple(held), "norm")
        self.split_out(piece, h)
        if m.qk_norm:
            keeps = self.tokens * (heads + kv) * d * self.w
            piece.things.append(Thing(keeps, keeps, (Weights(2 * d, summed="tp" if p.tp > 1 else ""),)))
            piece.whole += 2 * d
        self.core(piece, (heads, kv, d, d), window)
        self.out(piece, heads * d, m.heads * d)

    def out(self, piece: Piece, mine: int, whole: int) -> None:
        h, bias = self.m.hidden, self.m.hidden * bool(self.m.bias)
        held = [Weights(mine * h)] + ([Weights(bias, summed="tp" if self.sp else "")] if bias else [])
        self.product(piece, self.tokens, mine * h, self.tokens * mine * self.g, tuple(held))
        self.split_in(piece, h)
        piece.whole += whole * h + bias

    def latent(self, piece: Piece, window: int) -> None:
        m, p, h = self.m, self.p, self.m.hidden
        heads, key = m.heads // p.tp, m.nope_size + m.rope_size
        summed = "tp" if self.sp else ""
        use = "norm"
        if m.q_rank:
            self.product(piece, self.rows, h * m.q_rank, self.rows * h * self.g,
                         (Weights(h * m.q_rank, summed=summed),), use)  # fmt: skip
            self.rank_norm(piece, m.q_rank)
            use = ""
        deep = m.q_rank or h
        self.product(piece, self.tokens, deep * heads * key, self.rows * deep * self.g,
                     (Weights(deep * heads * key),), "norm")  # fmt: skip
        self.split_out(piece, deep)
        down = h * (m.kv_rank + m.rope_size)
        self.product(piece, self.rows, down, self.rows * h * self.g, (Weights(down, summed=summed),))
        self.rank_norm(piece, m.kv_rank)
        up = m.kv_rank * heads * (m.nope_size + m.value_size)
        self.product(piece, self.tokens, up, self.rows * m.kv_rank * self.g, (Weights(up),), "norm")
        self.split_out(piece, m.kv_rank)
        piece.whole += h * m.q_rank + m.q_rank + deep * m.heads * key + down + m.kv_rank + up * p.tp
        key_bytes = self.tokens * m.rope_size * self.w
        if self.sp:
            piece.forward["tp", "all_gather", key_bytes // p.tp] += 1
            piece.backward["tp", "reduce_scatter", key_bytes] += 1
        elif p.tp > 1:
            piece.backward["tp", "all_reduce", key_bytes] += 1
        self.core(piece, (heads, heads, key, m.value_size), window)
        self.out(piece, heads * m.value_size, m.heads * m.value_size)

    def rank_norm(self, piece: Piece, size: int) -> None:
        keeps = self.rows * size * self.w
        piece.things.append(Thing(keeps, keeps, (Weights(size, summed="tp" if self.sp else ""),)))

    def core(self, piece: Piece, shape: tuple[int, int, int, int], window: int) -> None:
        """Queries against keys: every query sees itself and what comes before it, in a window the last ones alone."""
        p, (heads, kv, dk, dv) = self.p, shape
        s = p.seq
        if p.attention == "unfused":
            return self.unfused(piece, shape)
        pairs = sum(min(i + 1, window or s) for i in range(s)) // p.cp
        piece.attention += 2 * p.micro_batch * heads * pairs * (dk + dv)
        piece.attention_back += 2 * p.micro_batch * heads * pairs * (3 * dk + 2 * dv)
        sums = 4 * self.tokens * heads
        full = self.tokens * (heads * dk + kv * (dk + dv)) * self.w + sums
        keys = self.tokens * kv * (dk + dv) * self.w
        gathered = keys * p.cp if p.cp > 1 and p.cp_kind == "all_gather" else 0
        less = sums if "attention" in self.again else 0
        piece.things.append(Thing(full - less, full, beside=gathered, beside_back=gathered))
        if p.cp > 1 and p.cp_kind == "ring":
            piece.core["cp", "send", keys] += p.cp - 1
            piece.backward["cp", "send", 2 * keys] += p.cp - 1  # with the gradients so far
        elif p.cp > 1 and p.cp_kind == "all_gather":
            piece.core["cp", "all_gather", keys] += 1
            piece.backward["cp", "all_gather", keys] += 1
            piece.backward["cp", "reduce_scatter", keys * p.cp] += 1
        elif p.cp > 1:
            queries, values = self.tokens * heads * dk * self.w, self.tokens * heads * dv * self.w
            for size in (queries + keys, values):
                piece.core["cp", "all_to_all", size] += 1
                piece.backward["cp", "all_to_all", size] += 1
        piece.forward += piece.core
        return None

    def unfused(self, piece: Piece, shape: tuple[int, int, int, int]) -> None:
        """Scores in memory: probabilities, a mask of bytes and what it leaves."""
        p, (heads, kv, dk, dv) = self.p, shape
        scores = p.micro_batch * heads * p.seq * p.seq
        piece.attention += 2 * scores * (dk + dv)
        piece.attention_back += 4 * scores * (dk + dv)
        inner = [scores * self.w, scores + scores * self.w]
        kept = [0, 0] if "attention" in self.again else inner
        queries = self.tokens * (heads + kv) * dk * self.w
        piece.things.append(Thing(queries, queries))
        piece.things += [Thing(k, full) for k, full in zip(kept, inner, strict=True)]
        piece.things.append(Thing(self.tokens * kv * dv * self.w, self.tokens * kv * dv * self.w))

    def feed_forward(self, piece: Piece, ffn: int = 0, *, bias: bool | None = None, use: str = "norm") -> None:
        m, p, h = self.m, self.p, self.m.hidden
        ffn, ways = ffn or m.ffn, 2 if m.gated else 1
        bias = bool(m.bias) if bias is None else bias
        mine = ffn // p.tp
        self.product(piece, self.tokens, ways * mine * h, self.rows * h * self.g,
                     (Weights(ways * mine * (h + bias)),), use)  # fmt: skip
        self.split_out(piece, h)
        act = self.tokens * mine * ways * self.w
        piece.things.append(Thing(act, act))
        held = [Weights(mine * h)] + ([Weights(h, summed="tp" if self.sp else "")] if bias else [])
        self.product(piece, self.tokens, mine * h, self.tokens * mine * self.g, tuple(held), "activation")
        self.split_in(piece, h)
        piece.whole += ways * ffn * (h + bias) + ffn * h + h * bias

    def mixture(self, piece: Piece) -> None:
        m, p, h = self.m, self.p, self.m.hidden
        summed = "tp" if self.sp else ""
        self.product(piece, self.rows, h * m.experts, self.rows * h * self.w,
                     (Weights(h * m.experts, summed=summed),), "norm")  # fmt: skip
        self.in_16_bits(piece)
        ways, width = 2 if m.gated else 1, m.expert_ffn or m.ffn
        sent, mine = self.rows * m.top_k, m.experts // p.ep
        here = sent * p.etp  # every rank sends as much, so an even load is what one sends, from each rank of etp
        assert here % mine == 0, "experts with a part of a token"
        held = width // p.etp
        self.product(piece, here, ways * h * held, here * h * self.g, (Weights(mine * ways * h * held, expert=True),))
        act = here * held * ways * self.w
        piece.things.append(Thing(act, act))
        self.product(
            piece, here, h * held, here * held * self.g, (Weights(mine * h * held, expert=True),), "activation"
        )
        piece.whole += h * m.experts + m.experts * (ways + 1) * h * width
        out = self.g if p.dispatch == "products" else self.w
        for forth, back, kind, over, size in (
            (out, self.w, "all_to_all", p.ep, sent * h),
            (self.w, out, "all_to_all", p.ep, sent * h),
            (out, self.w, "gather", p.etp, sent * h),
            (self.w, out, "scatter", p.etp, sent * h * p.etp),
        ):
            if over == 1:
                continue
            if kind == "all_to_all":
                piece.forward["ep", kind, size * forth] += 1
                piece.backward["ep", kind, size * back] += 1
            elif kind == "gather":
                piece.forward["etp", "all_gather", size * forth] += 1
                piece.backward["etp", "reduce_scatter", size * p.etp * back] += 1
            else:
                piece.forward["etp", "reduce_scatter", size * forth] += 1
                piece.backward["etp", "all_gather", size // p.etp * back] += 1
        if m.shared_ffn:
            self.feed_forward(piece, m.shared_ffn, bias=False, use="")

    def head(self) -> Piece:
        m, h = self.m, self.m.hidden
        piece = Piece(table=self.vocab * h if m.tied else 0)
        self.normed(piece)
        self.logits(piece, 0 if m.tied else self.vocab * h)
        piece.whole += 0 if m.tied else m.vocab * h
        return piece

    def logits(self, piece: Piece, held: int) -> None:
        h, p, size = self.m.hidden, self.p, self.tokens * self.vocab
        self.product(piece, self.tokens, h * self.vocab, self.rows * h * self.w, (Weights(held),))
        self.in_16_bits(piece)
        self.split_out(piece, h, wide=self.w, pieces=1)
        loss = WIDTH[p.loss_dtype]
        beside = size * self.w + (size * loss if p.loss_dtype != self.act else 0)
        piece.things.append(Thing(size * loss, size * loss, beside=beside, beside_back=size * loss))
        if p.tp > 1:
            piece.forward["tp", "all_reduce", 4 * self.tokens] += 2  # the largest and the sum of a token

    def predicts(self, like: Piece) -> Piece:
        """Embedding of the next token and what was made of this one, two norms, a product, a layer, norm and head."""
        m, p, h = self.m, self.p, self.m.hidden
        piece = Piece(layer=True, table=self.vocab * h)
        piece.things.append(Thing(8 * self.tokens, 8 * self.tokens))
        self.spread_tokens(piece)
        self.normed(piece)
        self.normed(piece)
        self.product(piece, self.tokens, 2 * h * h // p.tp, self.rows * 2 * h * self.g, (Weights(2 * h * h // p.tp),))
        self.split_out(piece, 2 * h)
        piece.whole += 2 * h * h
        full = self.tokens * h * self.w
        if p.tp > 1:
            piece.forward["tp", "all_gather", full // p.tp] += 1
            if self.sp:
                piece.backward["tp", "all_gather", full // p.tp] += 1
        last = m.layers - 1
        experts = m.experts and last >= m.dense_layers and (last + 1) % m.moe_every == 0
        window = m.window if last % m.window_every == 0 else 0
        inner = self.layer(bool(experts), window)
        for name in ("products", "attention", "attention_back", "whole"):
            setattr(piece, name, getattr(piece, name) + getattr(inner, name))
        piece.forward += inner.forward
        piece.backward += inner.backward
        piece.core += inner.core
        piece.things += inner.things
        self.normed(piece)
        self.logits(piece, 0)
        if "layer" in self.again:  # nothing of it is as large as what leaves it: it is the last
            piece.things = [t._replace(keeps=0) for t in piece.things]
        elif "norm" in self.again:  # the last norm is made again for the head's product
            piece.things[-2] = piece.things[-2]._replace(keeps=0)
        return piece

    # -- stages ------------------------------------------------------------------------------------------------------

    def cut(self, pieces: list[Piece]) -> list[list[Piece]]:
        """Layers evenly; what is over to the stages between the ends, then to the last, then to the first."""
        count = 1 + max(s for rank in self.held for s in rank)
        embedding, rest = pieces[0], pieces[1:]
        layers, ends = rest[: self.m.layers], rest[self.m.layers :]
        sizes = [len(layers) // count] * count
        for s in [*range(1, count - 1), count - 1, 0][: len(layers) % count]:
            sizes[s] += 1
        stages: list[list[Piece]] = []
        for size in sizes:
            stages.append(layers[:size])
            layers = layers[size:]
        stages[0] = [embedding, *stages[0]]
        stages[-1] = [*stages[-1], *ends]
        return stages

    def copies(self) -> None:
        """A rank that uses the embedding without having it has a copy, one."""
        self.table_ranks: set[int] = set()
        self.table = self.vocab * self.m.hidden
        for rank, mine in enumerate(self.held):
            users = [i for s in mine for i, piece in enumerate(self.stages[s]) if piece.table]
            if users and 0 not in mine:
                self.table_ranks.add(rank)
        if self.table_ranks:
            stage = self.stages[-1]
            at = next(i for i, piece in enumerate(stage) if piece.table)
            # In the head it is the logits' weight, in a layer that predicts the table that is looked up.
            i = 1 if not stage[at].layer else 0
            thing = stage[at].things[i]
            stage[at].things[i] = thing._replace(weights=(*thing.weights, Weights(self.table)))
            self.table_ranks |= {rank for rank, mine in enumerate(self.held) if 0 in mine}

    # -- weights ------------------------------------------------------------------------------------------------------

    def shards(self, expert: bool) -> tuple[int, int]:
        """(ranks that a weight's gradient and state are spread over, sets of them)."""
        p = self.p
        same = self.dp * p.cp if not expert else p.gpus // p.pp // (p.ep * p.etp)
        if not p.zero:
            return 1, same
        inside = p.dp_shard or self.dp * p.cp
        if expert:
            inside = max(inside * p.tp // (p.ep * p.etp), 1)
        return inside, same // inside

    def mine(self, rank: int) -> list[Piece]:
        return [piece for s in self.held[rank] for piece in self.stages[s]]

    def weight_bytes(self, rank: int) -> int:
        p, total = self.p, 0
        for expert in (False, True):
            counts = [piece.weights(expert) for piece in self.mine(rank)]
            n = self.shards(expert)[0]
            if p.zero < 3:
                total += sum(counts) * self.w
            else:
                whole = min((p.prefetch + 1) * max(counts), sum(counts)) if p.reshard else sum(counts)
                total += (ceil(sum(counts) / n) + (whole if n > 1 else 0)) * self.w
        return total + 2 * self.cast_weights(rank)

    def cast_weights(self, rank: int) -> int:
        """Bytes of products in 8 bits, one layout: all but the head's and routers', norms and tables."""
        if self.p.precision != "fp8":
            return 0
        sizes = [self.cast_of(piece) for piece in self.mine(rank)]
        if self.p.zero < 3 or not self.p.reshard:
            return sum(sizes)
        return min((self.p.prefetch + 1) * max(sizes), sum(sizes))

    def cast_of(self, piece: Piece) -> int:
        return sum(w.count for t in piece.things for w in t.weights if w.cast)

    def state_count(self, rank: int) -> int:
        """Weights that the rank's optimizer updates."""
        total = 0
        for s in self.held[rank]:
            for expert in (False, True):
                total += ceil(sum(piece.weights(expert) for piece in self.stages[s]) / self.shards(expert)[0])
        return total

    def optimizer_bytes(self, rank: int) -> int:
        each = 2 * WIDTH[self.p.state_dtype] + (4 if self.p.master and self.act != "fp32" else 0)
        return self.state_count(rank) * each

    def gradient_bytes(self, rank: int) -> int:
        total = 0
        for expert in (False, True):
            counts = [piece.weights(expert) for piece in self.mine(rank)]
            n = self.shards(expert)[0]
            total += ceil(sum(counts) / n if self.p.zero >= 2 else sum(counts)) * self.grad
            total += max(counts) * self.grad if self.p.zero >= 2 and n > 1 else 0
        return total

    # -- operations ---------------------------------------------------------------------------------------------------

    def product_flops(self, rank: int) -> tuple[int, int]:
        """(once, done again) of a step."""
        once = again = 0
        for action, s, _ in self.actions[rank]:
            if action != FORWARD:
                continue
            for piece in self.stages[s]:
                once += 3 * piece.products + piece.attention + piece.attention_back
                if piece.layer and "layer" in self.again:
                    again += piece.products + piece.attention
                elif piece.layer and "attention" in self.again:
                    again += piece.attention
        return once, again

    def params(self) -> int:
        return sum(piece.whole for stage in self.stages for piece in stage)

    # -- communication ------------------------------------------------------------------------------------------------

    def calls(self, rank: int) -> Counter[tuple[str, str, int]]:
        """(group, collective, bytes given) of all that a rank does in a step."""
        found: Counter[tuple[str, str, int]] = Counter()
        for action, s, _ in self.actions[rank]:
            for piece in self.stages[s]:
                if action == FORWARD:
                    found += piece.forward
                if action in (BACKWARD, INPUT):
                    found += piece.backward
                    if piece.layer and "layer" in self.again:
                        found += piece.forward
                    elif piece.layer and "attention" in self.again:
                        found += piece.core
        for s in self.held[rank]:
            found += self.data_parallel(rank, s)
        found += self.sums(rank)
        if self.p.clip and self.p.gpus > 1:
            found["world", "all_reduce", 4] += 1
        return found

    def data_parallel(self, rank: int, s: int) -> Counter[tuple[str, str, int]]:
        """Gradients of the copies of a stage's weights, and the weights where they are sharded. Buckets of a block each
        (bucket 1) or of all (a bucket that is larger)."""
        p, found = self.p, Counter[tuple[str, str, int]]()
        kinds = Counter(action for action, stage, _ in self.actions[rank] if stage == s)
        turns = kinds[FORWARD]
        for expert in (False, True):
            n, sets = self.shards(expert)
            counts = [c for c in (piece.weights(expert) for piece in self.stages[s]) if c]
            if n * sets == 1 or not counts:
                continue
            whole, part, other = ("edp", "eshard", "ereplica") if expert else ("dp", "shard", "replica")
            spread, summed = (part, other) if sets > 1 else (whole, "")
            summed = whole if n == 1 else summed
            single = p.zero == 3 or p.bucket == 1
            sizes = [ceil(c / n) * n for c in (counts if single else [sum(counts)])]
            times = turns if p.zero >= 2 else 1
            for size in sizes:
                if n > 1:
                    found[spread, "reduce_scatter", size * self.grad] += times
                if sets > 1:
                    found[summed, "all_reduce", size // n * self.grad] += times
            if n > 1 and p.zero in (1, 2):
                for size in sizes if p.overlap_params else [ceil(sum(counts) / n) * n]:
                    found[spread, "all_gather", size // n * self.w] += 1
            if n > 1 and p.zero == 3:
                for size in sizes:
                    found[spread, "all_gather", size // n * self.w] += turns * (2 if p.reshard else 1)
        return found

    def sums(self, rank: int) -> Counter[tuple[str, str, int]]:
        """Gradients that more ranks than the copies have a part of."""
        p, found, by_group = self.p, Counter[tuple[str, str, int]](), Counter[str]()
        for piece in self.mine(rank):
            for thing in piece.things:
                for weights in thing.weights:
                    by_group[weights.summed] += weights.count
        n = self.shards(False)[0]
        for group, count in by_group.items():
            if group and count:
                found[group, "all_reduce", (ceil(count / n) if p.zero >= 2 else count) * self.grad] += 1
        twice = sum(map(len, self.held)) > len(self.stages)
        if twice:
            less = ceil(self.table / n) if rank in self.table_ranks else 0
            found["twins", "all_reduce", (self.state_count(rank) - less) * self.grad] += 1
        if rank in self.table_ranks:
            found["ends", "all_reduce", (ceil(self.table / n) if p.zero >= 2 else self.table) * self.grad] += 1
        return found

    def messages(self, rank: int) -> Counter[tuple[int, int]]:
        """(pipeline rank that it is sent to, bytes) of what goes from stage to stage."""
        home = {(s, micro): r for r, mine in enumerate(self.actions) for _, s, micro in mine}
        size = self.rows * self.m.hidden * self.w
        found: Counter[tuple[int, int]] = Counter()
        for action, s, micro in self.actions[rank]:
            to = s + 1 if action == FORWARD else s - 1
            if action != WEIGHT and 0 <= to < len(self.stages) and home[to, micro] != rank:
                found[home[to, micro], size] += 1
        return found

    # -- memory -------------------------------------------------------------------------------------------------------

    def gradients_of(self, thing: Thing) -> int:
        """Gradient of a thing's weights as it stays."""
        expert = any(w.expert for w in thing.weights)
        n = self.shards(expert)[0] if self.p.zero >= 2 else 1
        return ceil(sum(w.count for w in thing.weights) / n * self.grad)

    def moments(self, s: int, *, first: bool) -> int:
        """The most that a stage's backward pass holds of its own: from the last thing to the first. `first`: its
        gradients appear, and were not there before."""
        pieces = self.stages[s]
        most = 0
        made_behind = 0 if first else sum(self.gradients_of(t) for piece in pieces for t in piece.things)
        for at in reversed(range(len(pieces))):
            before = sum(t.keeps for piece in pieces[:at] for t in piece.things)
            things = pieces[at].things
            for i in reversed(range(len(things))):
                if first:
                    made_behind += self.gradients_of(things[i])
                there = sum(t.full for t in things[: i + 1])
                after = next((t.full for t in things[i + 1 :] if t.full), 0)
                flows = pieces[at].out_bytes + things[i].full + after
                if not first and self.p.zero < 2:  # a gradient is made before it is added to the one that is there
                    flows += sum(w.count for w in things[i].weights) * self.w
                most = max(most, before + there + flows + things[i].beside_back + made_behind)
        return most

    def forward_most(self, s: int) -> int:
        most = kept = 0
        for piece in self.stages[s]:
            for thing in piece.things:
                kept += thing.keeps
                most = max(most, kept + thing.beside)
        return most

    def peak_bytes(self, rank: int) -> int:
        """Walks the schedule. Schedules with whole backward passes."""
        p = self.p
        keeps = {s: sum(t.keeps for piece in self.stages[s] for t in piece.things) for s in self.held[rank]}
        makes = {s: sum(self.gradients_of(t) for piece in self.stages[s] for t in piece.things) for s in keeps}
        buffer = 0
        for expert in (False, True):
            if p.zero >= 2 and self.shards(expert)[0] > 1:
                buffer += max(piece.weights(expert) for piece in self.mine(rank)) * self.grad
        kept, done, most = 0, set(keeps) if p.keep_grads else set[int](), 0
        for action, s, _ in self.actions[rank]:
            gradients = sum(makes[d] for d in done if d != s)
            own = makes[s] if s in done else 0
            if action == FORWARD:
                most = max(most, kept + self.forward_most(s) + gradients + own)
                kept += keeps[s]
            else:
                kept -= keeps[s]
                most = max(most, kept + self.moments(s, first=s not in done) + gradients + buffer)
                done.add(s)
        fixed = self.weight_bytes(rank) + self.optimizer_bytes(rank)
        return max(fixed + most, fixed + self.gradient_bytes(rank))
