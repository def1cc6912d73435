"""A trace's graph, or the part of it around a node, as DOT, GraphML or SVG.

DOT and GraphML are joined from columns by Arrow and have no size limit; SVG is laid out here and is for graphs that a
person can look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.kernels.arrays import I32, I64
from etude.model import graph
from etude.model.schema import UNKNOWN, Kind, Why
from etude.model.trace import Trace
from etude.tell.view.chrome import as_text
from etude.tell.view.slices import UNRECORDED, Sort, sorts

__all__ = ["find_node", "part_of", "write_dot", "write_graphml"]


_ROWS = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class Subgraph:
    """Nodes of a trace and the dependencies among them: node i of the part is `rows[i]` of the trace."""

    rows: I32
    name: pa.Array
    kind: NDArray[np.uint8]
    sort: NDArray[np.uint8]
    source_id: NDArray[np.uint64]
    duration_ns: I64
    before: I32
    after: I32
    is_data: NDArray[np.bool_]
    why: NDArray[np.uint8]
    caller: pa.Array
    """Name of the caller, null: none."""
    centre: int = -1
    """The centre node of the part, if there is one."""
    cut: int = 0
    """Nodes next to the part that are not in it."""

    def __len__(self) -> int:
        return len(self.rows)


def part_of(trace: Trace, around: int | None = None, hops: int = 3) -> Subgraph:
    """All of a trace, or what is at most `hops` dependencies, in either direction, from the node `around`."""
    before, after, is_data, why = _edges(trace)
    inside = np.ones(len(trace), bool)
    if around is not None:
        if not 0 <= around < len(trace):
            raise UsageError(f"there is no node {around}", hint=f"nodes are 0 to {len(trace) - 1}; id=N is an id")
        inside[:] = False
        inside[around] = True
        for _ in range(hops):
            touched = inside[before] | inside[after]
            inside[before[touched]] = inside[after[touched]] = True
    rows = np.flatnonzero(inside).astype(np.int32)
    place = np.full(len(trace), -1, np.int64)
    place[rows] = np.arange(len(rows))
    kept = inside[before] & inside[after]
    beyond = np.concatenate([before[~kept & inside[after]], after[~kept & inside[before]]])
    codes, text = trace.coded("name")
    known = pa.array([*text, ""], pa.string())
    parent = trace.parent[rows]
    of = np.where(parent >= 0, codes[parent], -1)
    return Subgraph(
        rows=rows, name=known.take(pa.array(codes[rows] % (len(text) + 1))),
        caller=pa.array(text, pa.string()).take(pa.array(of, mask=of < 0)),
        kind=trace.kind[rows], sort=sorts(trace)[rows], source_id=trace.source_id[rows],
        duration_ns=trace.duration_ns[rows], before=place[before[kept]].astype(np.int32),
        after=place[after[kept]].astype(np.int32), is_data=is_data[kept], why=why[kept],
        centre=-1 if around is None else int(place[around]), cut=len(np.unique(beyond)),
    )  # fmt: skip


def _edges(trace: Trace) -> tuple[I32, I32, NDArray[np.bool_], NDArray[np.uint8]]:
    parts = []
    for which in ("data", "ctrl"):
        dep = graph.dependencies(trace, which)
        after = np.repeat(np.arange(len(dep), dtype=np.int32), np.diff(dep.start))
        known = dep.rows >= 0
        parts.append((dep.rows[known], after[known], np.full(known.sum(), which == "data"),
                      getattr(trace, f"{which}_why")[known]))  # fmt: skip
    before, after, is_data, why = (np.concatenate([a, b]) for a, b in zip(*parts, strict=True))
    return before, after, is_data, why


def find_node(trace: Trace, text: str) -> int:
    """A node by its row (`812`), its id in the file (`id=9001`) or its name."""
    if text.isdecimal():
        return int(text)
    if text.startswith("id="):
        rows = np.flatnonzero(trace.source_id == int(text[3:])) if text[3:].isdecimal() else np.zeros(0, np.intp)
        if not len(rows):
            raise UsageError(f"no node has the id {text[3:]}")
        return int(rows[0])
    codes, words = trace.coded("name")
    if text not in words:
        near = [w for w in words if text.lower() in w.lower()][:5]
        raise UsageError(f"no node is called `{text}`", hint=f"there are: {', '.join(near)}" if near else "")
    return int(np.flatnonzero(codes == words.index(text))[0])


def write_dot(part: Subgraph, file: BinaryIO) -> None:
    file.write(b'digraph trace {\n  rankdir=TB;\n  node [shape=box, style="rounded,filled", fontname="Helvetica"];\n')
    for label, fill in _FILL.items():
        file.write(f"  // {label.label}: {fill}\n".encode())
    fills = pa.array([_FILL.get(s, "#eeeeee") for s in Sort])
    label = pc.replace_substring(pc.replace_substring(_names(part), "\\", "\\\\"), '"', '\\"')
    _stream(file, len(part), lambda a, b: pc.binary_join_element_wise(
        "  n", as_text(part.rows[a:b]), ' [label="', label[a:b], '", fillcolor="',
        fills.take(pa.array(part.sort[a:b])), '"];\n', ""))  # fmt: skip
    style = pa.array(["dashed", "solid"])
    _stream(file, len(part.before), lambda a, b: pc.binary_join_element_wise(
        "  n", as_text(part.rows[part.before[a:b]]), " -> n", as_text(part.rows[part.after[a:b]]), " [style=",
        style.take(pa.array(part.is_data[a:b].astype(np.int8))), "];\n", ""))  # fmt: skip
    file.write(b"}\n")


_GRAPHML = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="name" for="node" attr.name="name" attr.type="string"/>
<key id="kind" for="node" attr.name="kind" attr.type="string"/>
<key id="id" for="node" attr.name="source_id" attr.type="long"/>
<key id="ns" for="node" attr.name="duration_ns" attr.type="long"/>
<key id="on" for="edge" attr.name="dependency" attr.type="string"/>
<key id="why" for="edge" attr.name="why" attr.type="string"/>
<graph id="trace" edgedefault="directed">
"""


def write_graphml(part: Subgraph, file: BinaryIO) -> None:
    file.write(_GRAPHML.encode())
    kinds = pa.array([k.wire_name for k in Kind])
    name = _names(part)
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        name = pc.replace_substring(name, char, entity)
    name = pc.replace_substring_regex(name, r"[\x00-\x08\x0b\x0c\x0e-\x1f]", " ")  # XML cannot represent these
    ns = pa.array(part.duration_ns, mask=part.duration_ns == UNKNOWN)
    cost = pc.fill_null(pc.binary_join_element_wise('<data key="ns">', pc.cast(ns, pa.string()), "</data>", ""), "")
    _stream(file, len(part), lambda a, b: pc.binary_join_element_wise(
        '<node id="n', as_text(part.rows[a:b]), '"><data key="name">', name[a:b], '</data><data key="kind">',
        kinds.take(pa.array(part.kind[a:b])), '</data><data key="id">', as_text(part.source_id[a:b]), "</data>",
        cost[a:b], "</node>\n", ""))  # fmt: skip
    on, why = pa.array(["control", "data"]), pa.array([w.name.lower() for w in Why])
    _stream(file, len(part.before), lambda a, b: pc.binary_join_element_wise(
        '<edge source="n', as_text(part.rows[part.before[a:b]]), '" target="n', as_text(part.rows[part.after[a:b]]),
        '"><data key="on">', on.take(pa.array(part.is_data[a:b].astype(np.int8))), '</data><data key="why">',
        why.take(pa.array(part.why[a:b])), "</data></edge>\n", ""))  # fmt: skip
    file.write(b"</graph>\n</graphml>\n")


def _names(part: Subgraph) -> pa.Array:
    empty = pc.equal(part.name, "")
    return pc.if_else(empty, pc.binary_join_element_wise("node", as_text(part.rows), " "), part.name)


def _stream(file: BinaryIO, count: int, lines: Callable[[int, int], pa.Array]) -> None:
    for a in range(0, count, _ROWS):
        file.write(pc.binary_join(_one_list(lines(a, min(a + _ROWS, count))), "").buffers()[2])


def _one_list(lines: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)


_FILL = {
    Sort.COMPUTE: "#bcd8f0",
    Sort.COMMUNICATION: "#f7d0a8",
    Sort.MEMORY: "#c9e6c8",
    Sort.HOST: "#e3e0ee",
    Sort.OTHER: "#eeeeee",
}


def _escaped(text: str, most: int) -> str:
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    return escape("".join(c if c.isprintable() else " " for c in shown))


def words(part: Subgraph) -> Iterator[tuple[str, str, str]]:
    """For each node its label, the text below it, and its tooltip."""
    from etude.base.units import format_time

    for name, caller, row, kind, sid, ns in zip(
        part.name.to_pylist(), part.caller.to_pylist(), part.rows.tolist(), part.kind.tolist(),
        part.source_id.tolist(), part.duration_ns.tolist(), strict=True,
    ):  # fmt: skip
        what = Kind(kind).wire_name
        cost = "" if ns == UNKNOWN or not ns else format_time(ns).replace("us", "µs")
        told = f"{name or 'no name'}{f' of {caller}' if caller else ''}\nnode {row}, id {sid}, {what}"
        label = f"in {caller}" if caller and name in UNRECORDED else name or f"node {row}"
        yield _escaped(label, 26), _escaped(f"node {row}{f' · {cost}' if cost else ''}", 30), _escaped(told, 400)
