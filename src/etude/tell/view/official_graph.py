"""Graphs as Chakra's official visualizer writes them: GraphML for graph tools, DOT for Graphviz."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Final
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from etude.base.errors import UsageError
from etude.base.files import write_pieces, writing
from etude.kernels.arrays import U64
from etude.model.trace import Trace

__all__ = ["graph_program", "write_graph"]


_SPECIAL: Final = re.compile(r'([{}()<>\[\]|&"-])')
_NOT_XML: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_HEAD: Final = (
    "<?xml version='1.0' encoding='utf-8'?>\n"
    '<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
    'xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns '
    'http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">\n'
)


def official_graphml(trace: Trace) -> Iterator[str]:
    """Nodes in the order in which they are first named, a dependency once; one of both kinds is `control`."""
    source, target, is_data, mentioned = _edges(trace)
    order = _distinct(mentioned)
    yield _HEAD
    if len(source):
        yield '  <key id="d1" for="edge" attr.name="dependency" attr.type="string" />\n'
    if len(trace):
        yield '  <key id="d0" for="node" attr.name="label" attr.type="string" />\n'
    yield '  <graph edgedefault="directed">\n'
    row_of = dict(zip(trace.source_id.tolist(), range(len(trace)), strict=True))
    for node in order.tolist():
        row = row_of.get(node)
        if row is None:
            yield f'    <node id="{node}" />\n'
        else:
            label = escape(_NOT_XML.sub("?", trace.text("name", row)))
            yield f'    <node id="{node}">\n      <data key="d0">{label}</data>\n    </node>\n'
    for a, b, data in _joined(order, source, target, is_data):
        kind = "data" if data else "control"
        yield f'    <edge source="{a}" target="{b}">\n      <data key="d1">{kind}</data>\n    </edge>\n'
    yield "  </graph>\n</graphml>\n"


def official_dot(trace: Trace) -> Iterator[str]:
    """DOT without a layout, which `dot` makes: an arrow for data, a bar for control."""
    yield "digraph {\n"
    ids = trace.source_id.tolist()
    deps = [(start.tolist(), _ids(trace, rows).tolist(), head) for start, rows, head in _kinds(trace)]
    for row, node in enumerate(ids):
        label = _SPECIAL.sub(r"\\\1", trace.text("name", row)).replace("\n", r"\n")
        yield f'\t{node} [label="{label}" id={node} shape=record]\n'
        for start, before, head in deps:
            for other in before[start[row] : start[row + 1]]:
                yield f"\t{other} -> {node} [arrowhead={head}]\n"
    yield "}\n"


def _kinds(trace: Trace) -> tuple[tuple[NDArray[np.int64], NDArray[np.int32], str], ...]:
    return (trace.data_start, trace.data, "normal"), (trace.ctrl_start, trace.ctrl, "tee")


def _ids(trace: Trace, rows: NDArray[np.int32]) -> U64:
    """Ids of these rows; those below 0 are of nodes that are not in the trace."""
    found = np.empty(len(rows), np.uint64)
    found[rows >= 0] = trace.source_id[rows[rows >= 0]]
    found[rows < 0] = trace.missing[~rows[rows < 0]]
    return found


def _edges(trace: Trace) -> tuple[U64, U64, NDArray[np.bool_], U64]:
    """(Source and target ids, whether it is data) of each dependency, a node's data first; and all ids in the order in
    which they appear in the file: each node, then its dependencies."""
    n = len(trace)
    sources, nodes, data = [], [], []
    for start, rows, head in _kinds(trace):
        sources.append(_ids(trace, rows))
        nodes.append(np.repeat(np.arange(n), np.diff(start)))
        data.append(np.full(len(rows), head == "normal"))
    source, node, is_data = np.concatenate(sources), np.concatenate(nodes), np.concatenate(data)
    order = np.lexsort((~is_data, node))  # stable: the file's order within a node and kind
    source, node, is_data = source[order], node[order], is_data[order]
    own_first = np.argsort(np.concatenate([np.arange(n), node]), kind="stable")
    mentioned = np.concatenate([trace.source_id, source])[own_first]
    return source, trace.source_id[node], is_data, mentioned


def _distinct(values: U64) -> U64:
    """Each value once, in order of its first use."""
    _, first = np.unique(values, return_index=True)
    return values[np.sort(first)]


def _joined(order: U64, source: U64, target: U64, is_data: NDArray[np.bool_]) -> Iterator[tuple[int, int, bool]]:
    """Each pair once, by the position of its source, then of its first use; its last use determines the kind."""
    places = dict(zip(order.tolist(), range(len(order)), strict=True))
    kind: dict[tuple[int, int], bool] = {}
    for a, b, data in zip(source.tolist(), target.tolist(), is_data.tolist(), strict=True):
        kind[a, b] = data
    for a, b in sorted(kind, key=lambda pair: places[pair[0]]):
        yield a, b, kind[a, b]


def graph_program(out: Path) -> str:
    """The program that a graph of this ending needs; empty for those that need none."""
    if out.suffix not in (".graphml", ".dot", ".pdf"):
        problem = f"a graph cannot be written as `{out.suffix}`"
        raise UsageError(problem, where=f"--output_filename {out}", hint=".graphml, .dot, .pdf")
    found = which("dot") if out.suffix == ".pdf" else ""
    if found is None:
        hint = "install Graphviz, or write `.graphml` or `.dot`"
        raise UsageError("a PDF needs the program `dot` of Graphviz, which was not found", where=str(out), hint=hint)
    return found


def write_graph(trace: Trace, out: Path, program: str) -> str:
    """The graph in the format of the file's ending, by what `graph_program` gave. Returns what was written, in
    words."""
    lines = official_graphml(trace) if out.suffix == ".graphml" else official_dot(trace)
    if program:
        with writing(out, force=True) as path:
            _write_pdf(program, "".join(lines), path)
    else:
        write_pieces(out, (line.encode() for line in lines))
    return f"wrote {out}: {len(trace):,} nodes"


def _write_pdf(dot: str, text: str, path: Path) -> None:
    """A graph in DOT, rendered by this program."""
    done = subprocess.run([dot, "-Tpdf", "-o", str(path)], input=text.encode(), capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(f"`dot` failed: {said[0] if said else done.returncode}", hint="write `.graphml` instead")
