"""Selectors: which nodes of a job an edit works on.

kind=collective group=dp phase=backward* bytes=1MB.. ranks=0-3
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from etude.base.grammar import LinePiece, line
from etude.cost.aten_inputs import dtype_of
from etude.kernels.arrays import I64, Bool
from etude.model.schema import UNKNOWN, Collective, Kind
from etude.model.trace import Trace
from etude.model.use import Use, uses

Span = tuple[int, int]
"""From one number through another, inclusive."""

MOST: Final = 2**63 - 1
WORLD: Final = "world"
"""Name of an unnamed group of all ranks."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ProgramView:
    """One program of a job as a selector sees it."""

    trace: Trace
    group_names: tuple[tuple[str, ...], ...]
    """Names of each group slot: its label, and the name of its group."""
    ranks: NDArray[np.int32]
    """The ranks that run it, which an edit treats alike."""


def _message(kind: NDArray[np.uint8]) -> Bool:
    return (kind == Kind.SEND) | (kind == Kind.RECV)


_PRODUCTS: Final = ("aten::linear", "aten::mm", "aten::addmm", "aten::_grouped_mm", "aten::_scaled_mm")
"""Operators of linear layers. Products of two activations, as in attention, are `aten::bmm`."""
_SENSITIVE: Final = re.compile(r"(^|[._])(lm_head|head|output|output_layer|router|gate)(\.|$)", re.IGNORECASE)
"""Modules that recipes of 8 bits leave as they are: the head and the router of experts."""


def _linear(trace: Trace) -> Bool:
    """Compute of linear layers other than the head and routers, where modules say which these are."""
    codes, words = trace.coded("module")
    left = np.array([*(bool(_SENSITIVE.search(word)) for word in words), False])[codes]
    return (uses(trace) == Use.COMPUTE) & _called(trace, _PRODUCTS) & ~left


_KINDS: Final[Mapping[str, Callable[[Trace], Bool]]] = {
    "compute": lambda t: uses(t) == Use.COMPUTE,
    "linear": _linear,
    "host": lambda t: (uses(t) == Use.HOST) & (t.kind == Kind.COMP),
    "copy": lambda t: (uses(t) == Use.MEMORY) | (t.kind == Kind.MEM_LOAD) | (t.kind == Kind.MEM_STORE),
    "memory": lambda t: (t.kind == Kind.MEM_LOAD) | (t.kind == Kind.MEM_STORE),
    "collective": lambda t: t.kind == Kind.COLL,
    "send": lambda t: t.kind == Kind.SEND,
    "recv": lambda t: t.kind == Kind.RECV,
    "message": lambda t: _message(t.kind),
    "communication": lambda t: _message(t.kind) | (t.kind == Kind.COLL),
    "node": lambda t: np.ones(len(t), bool),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Nodes that match all given criteria; without any, the default of an edit."""

    kind: tuple[str, ...] = field(default=(), metadata={"doc": f"one of {', '.join(_KINDS)}"})
    op: tuple[str, ...] = field(default=(), metadata={"doc": "name of the operator, or of one that called it"})
    collective: tuple[str, ...] = field(default=(), metadata={"doc": "all_reduce, all_gather, ..."})
    group: tuple[str, ...] = field(default=(), metadata={"doc": "axis or name of the group: dp, tp, ep, world"})
    phase: tuple[str, ...] = field(default=(), metadata={"doc": "forward, backward*, optimizer"})
    module: tuple[str, ...] = field(default=(), metadata={"doc": "path in the model: layers.3.*"})
    dtype: tuple[str, ...] = field(default=(), metadata={"doc": "data type of the first input: bf16, fp32"})
    bytes: tuple[Span, ...] = field(default=(), metadata={"doc": "1MB..64MB, 1MB.., ..64kB: what is sent or moved"})
    step: tuple[Span, ...] = field(default=(), metadata={"doc": "0, 2..4"})
    micro_batch: tuple[Span, ...] = field(default=(), metadata={"doc": "0, 2..4"})
    ranks: tuple[Span, ...] = field(
        default=(), metadata={"doc": "0-3,7: only on these ranks; they become a separate class"}
    )

    def __str__(self) -> str:
        return " ".join(
            f"{f.name}={_text(f.name, getattr(self, f.name))}" for f in fields(self) if getattr(self, f.name)
        )

    def rows(self, view: ProgramView, default: str) -> I64:
        """The selected rows of a program; `default` is the kind if none is given."""
        trace = view.trace
        if self.ranks and not any(_inside(self.ranks, rank) for rank in view.ranks[:1].tolist()):
            return np.zeros(0, np.int64)
        mask = np.zeros(len(trace), bool)
        for kind in self.kind or (default,):
            mask |= _KINDS[kind](trace)
        for name in ("phase", "module", "dtype"):
            if getattr(self, name) and mask.any():
                mask &= self._by_text(trace, name)
        if self.op:
            mask &= _called(trace, self.op)
        if self.collective:
            mask &= np.isin(trace.collective, [int(Collective.parse(name)) for name in self.collective])
        if self.group:
            mask &= self._by_group(view)
        for name in ("step", "micro_batch"):
            if getattr(self, name):
                mask &= _within(getattr(trace, name), getattr(self, name))
        if self.bytes:
            mask &= _within(moved_bytes(trace), self.bytes)
        return np.flatnonzero(mask)

    def groups_named(self, names: Iterable[str]) -> bool:
        """Whether a group with these names is selected."""
        return any(fnmatchcase(name, want) or fnmatchcase(name, f"{want}.*") for name in names for want in self.group)

    def _by_group(self, view: ProgramView) -> Bool:
        slots = [self.groups_named(names) for names in view.group_names]
        found: Bool = np.array([*slots, self.groups_named([WORLD])])[view.trace.group]  # the last is slot -1
        return found & (view.trace.kind == Kind.COLL)

    def _by_text(self, trace: Trace, name: str) -> Bool:
        wanted = getattr(self, name)
        codes, words = trace.coded("in_types" if name == "dtype" else name)
        if name == "dtype":
            words = [dtype_of(word) for word in words]
        good = [any(fnmatchcase(word, want) for want in wanted) for word in words]
        return np.array([*good, False])[codes]


def moved_bytes(trace: Trace) -> I64:
    """Input bytes of communication (output bytes if only those are known), bytes that other nodes move."""
    comm = _message(trace.kind) | (trace.kind == Kind.COLL)
    return np.where(comm, np.where(trace.in_bytes == UNKNOWN, trace.out_bytes, trace.in_bytes), trace.tensor_bytes)


def _called(trace: Trace, wanted: tuple[str, ...]) -> Bool:
    """Nodes of these names, and what they called or launched."""
    codes, words = trace.coded("name")
    found = np.array([*(any(fnmatchcase(word, want) for want in wanted) for word in words), False])[codes]
    above = np.append(trace.parent, np.int32(-1))
    at = trace.parent
    while (at >= 0).any():
        found = found | (np.append(found, False)[at])
        at = above[at]
    return found


def _within(values: NDArray[Any], spans: tuple[Span, ...]) -> Bool:
    found = np.zeros(len(values), bool)
    for low, high in spans:
        found |= (values >= low) & (values <= high)
    return found & (values != UNKNOWN)


def _inside(spans: tuple[Span, ...], value: int) -> bool:
    return any(low <= value <= high for low, high in spans)


# -- text --------------------------------------------------------------------------------------------------------------

_SPANS: Final = ("bytes", "step", "micro_batch", "ranks")
KEYS: Final = {f.name: str(f.metadata["doc"]) for f in fields(Selector)}
"""Keys of a selector, and their meaning."""


def parsed(key: str, value: str) -> tuple[Any, ...]:
    """The value of one key."""
    parts = line(value, "", KEYS[key]).split(",")
    if key in _SPANS:
        return tuple(_span(key, part) for part in parts)
    for part in parts:
        if key == "kind":
            part.choice(_KINDS, "kind")
        if key == "collective":
            Collective.parse(part.text)
    return tuple(part.text for part in parts)


def _span(key: str, text: LinePiece) -> Span:
    low, high = text.cut(".." if ".." in text.text or key != "ranks" else "-")
    first = _number(key, low) if low.text else 0
    last = first if high is None else _number(key, high) if high.text else MOST
    if first > last or not (low.text or (high and high.text)):
        raise text.wrong(f"`{text.text}` is empty")
    return first, last


def _number(key: str, text: LinePiece) -> int:
    if key == "bytes":
        return text.size_bytes(zero=True)
    if not text.text.isdecimal() or len(text.text) > 18:
        raise text.wrong(f"`{text.text}` is not a number")
    return int(text.text)


def _text(key: str, value: tuple[Any, ...]) -> str:
    if key not in _SPANS:
        return ",".join(value)
    dots = "-" if key == "ranks" else ".."
    return ",".join(str(low) if low == high else f"{low}{dots}{'' if high == MOST else high}" for low, high in value)
