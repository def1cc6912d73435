"""A model known only by its id: the shape of a similar model, scaled to the parameters that the id states.

    some-lab/Foo-13B            13 billion parameters
    some-lab/Foo-30B-A3B        of which 3 billion are active for a token: experts
    some-lab/Foo-8x7B           8 experts
    some-lab/Foo-17B-16E        17 billion active, 16 experts

The result is marked as assumed; its parameters are those stated to within a few percent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from etude.make.generate.model.shape import Family, Model

_SCALE: Final = {"b": 10**9, "m": 10**6, "t": 10**12}
_NUMBER: Final = r"(\d+(?:\.\d+)?)"


@dataclass(frozen=True, slots=True)
class Stated:
    """What an id states; 0: not stated."""

    total: float = 0.0
    active: float = 0.0
    experts: int = 0
    top_k: int = 0


def stated(name: str) -> Stated:
    """Counts in a name: `30B-A3B`, `8x7B`, `17B-128E`, `8B`."""
    text = name.lower()
    times = re.search(rf"(?<![a-z\d.])(\d+)x{_NUMBER}([bm])(?![a-z\d])", text)
    if times:
        each = float(times[2]) * _SCALE[times[3]]
        # Copies share all but their feed-forward layers; two of them are active, as in Mixtral.
        return Stated(total=0.82 * int(times[1]) * each, active=1.8 * each, experts=int(times[1]), top_k=2)
    active = re.search(rf"(?<![a-z\d.])a{_NUMBER}([bm])(?![a-z\d])", text)
    total = re.search(rf"(?<![a-z\d.]){_NUMBER}([bmt])(?![a-z\d])", text)
    many = re.search(r"(?<![a-z\d.])(\d+)e(?![a-z\d])", text)
    size = float(total[1]) * _SCALE[total[2]] if total else 0.0
    if many and not active:
        return Stated(active=size, experts=int(many[1]))
    return Stated(size, float(active[1]) * _SCALE[active[2]] if active else 0.0)


def guess(name: str, known: Iterable[Model]) -> Model | None:
    """The scaled shape of the most similar of these models; None if the name states no size."""
    said = stated(name)
    if not (said.total or said.active):
        return None
    many = bool(said.active)
    decoders = [m for m in known if _plain(m) and bool(m.experts) == many]
    size = said.active if many else said.total
    brand = _brand(name)

    def distance(m: Model) -> tuple[bool, bool, float]:
        other = bool(said.experts) and m.experts != said.experts
        return _brand(m.name) != brand, other, abs(math.log(_params(m, active=many) / size))

    like = min(decoders, key=distance)
    made = _scaled(like, said)
    told = f"{said.total / 1e9:g} billion parameters" if said.total else f"{said.experts} experts"
    told += f", {said.active / 1e9:g} billion of them active" if said.active else ""
    return made.replace(
        name=name, params="", source="", towers=(),
        assumed=f"the shape: that of {like.name}, scaled to the size in the id ({told})",
    )  # fmt: skip


def _plain(m: Model) -> bool:
    return m.family == Family.DECODER and m.mixers == "a" and not m.towers


def _brand(name: str) -> str:
    return re.split(r"[\d._-]", name.rsplit("/", 1)[-1].lower(), maxsplit=1)[0]


def _scaled(like: Model, said: Stated) -> Model:
    """Width and depth grow with the cube root of the size; the feed-forward layer takes up the difference."""
    size = said.active or said.total
    like = like.replace(top_k=said.top_k, shared_ffn=0) if said.top_k else like
    factor = (size / _params(like, active=bool(said.active))) ** (1 / 3)
    step = like.kv * like.head
    hidden = max(round(like.hidden * factor / step), 1) * step
    heads = max(round(like.heads * factor / like.kv), 1) * like.kv
    made = like.replace(
        hidden=hidden, heads=heads, kv_heads=like.kv, head_size=like.head, layers=max(round(like.layers * factor), 1)
    )
    made = made.replace(dense_layers=min(made.dense_layers, made.layers - 1))
    if not said.active:
        return made.replace(ffn=_solved(made, "ffn", said.total, active=False, step=64))
    wide = _solved(
        made.replace(expert_ffn=made.expert_ffn or made.ffn), "expert_ffn", said.active, active=True, step=16
    )
    made = made.replace(expert_ffn=wide)
    count = said.experts or _solved(made, "experts", said.total, active=False, step=max(made.top_k, 1))
    return made.replace(experts=max(count, made.top_k), top_k=min(made.top_k, max(count, 1)))


def _solved(model: Model, name: str, params: float, *, active: bool, step: int) -> int:
    """The value, in steps, that gives this many parameters: they grow linearly with it."""
    low, high = (_params(model.replace(**{name: n * step}), active=active) for n in (1024, 1025))
    return max(round(1024 + (params - low) / (high - low)), 1) * step


def _params(m: Model, *, active: bool) -> float:
    """Approximate: without norms and biases. `active`: those used per token."""
    attention = m.hidden * (2 * m.heads + 2 * m.kv) * m.head
    if m.kv_rank:
        attention = m.hidden * (m.q_rank + m.kv_rank + m.rope_size + m.heads * m.value_size)
        attention += m.heads * m.kv_rank * (m.nope_size + m.value_size)
        attention += (m.q_rank or m.hidden) * m.heads * (m.nope_size + m.rope_size)
    ways = 3 if m.gated else 2
    experts = sum(m.has_experts(i) for i in range(m.layers))
    count = m.top_k if active else m.experts
    feeds = (m.layers - experts) * m.ffn + experts * (count * (m.expert_ffn or m.ffn) + m.shared_ffn)
    return m.vocab * m.hidden * (1 if m.tied else 2) + m.layers * attention + ways * m.hidden * feeds
