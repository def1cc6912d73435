"""Graphs of a trace: the part around a node, the layout, and files that other readers read."""

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.base.errors import UsageError
from etude.model.build import TraceBuilder, job_of
from etude.model.schema import Kind
from etude.model.trace import Trace
from etude.store import chakra
from etude.surface.cli import main
from etude.tell.view.graph import find_node, part_of
from etude.tell.view.graph_svg import MOST, svg
from etude.tell.view.layers import draw
from training_step import training_step


def chain(length: int) -> Trace:
    b = TraceBuilder()
    for i in range(length):
        b.add(Kind.COMP, f'k{i} <"&">', source_id=100 + i, data=[i - 1] if i else [], duration_ns=5)
    return b.build()


def test_the_part_around_a_node():
    part = part_of(chain(10), around=4, hops=2)
    assert part.rows.tolist() == [2, 3, 4, 5, 6]
    assert (part.centre, part.cut) == (2, 2)
    assert list(zip(part.before.tolist(), part.after.tolist(), strict=True)) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    with pytest.raises(UsageError, match="there is no node 10"):
        part_of(chain(10), around=10)


def test_a_node_is_found_by_row_id_and_name():
    trace = chain(3)
    assert [find_node(trace, text) for text in ("2", "id=101", 'k0 <"&">')] == [2, 1, 0]
    with pytest.raises(UsageError, match="no node is called `k9`"):
        find_node(trace, "k9")
    with pytest.raises(UsageError, match="no node has the id 7"):
        find_node(trace, "id=7")


edges = st.integers(2, 12).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] < e[1]), max_size=24),
    )
)


@settings(max_examples=60)
@given(edges)
def test_a_drawing_goes_down_and_nothing_lies_on_another(graph: tuple[int, list[tuple[int, int]]]):
    nodes, pairs = graph
    before, after = (np.array([p[k] for p in pairs], np.int32) for k in (0, 1))
    found = draw(nodes, before, after, gap=10.0)
    for a, b in pairs:
        assert found.layer[a] < found.layer[b]
    for path, (a, b) in zip(found.path, pairs, strict=True):
        assert (path[0], path[-1]) == (a, b)
        assert all(found.layer[y] - found.layer[x] == 1 for x, y in pairwise(path))
    for layer in set(found.layer[:nodes].tolist()):
        x = np.sort(found.x[:nodes][found.layer[:nodes] == layer])
        assert (np.diff(x) >= 10.0 - 1e-6).all()


def test_a_picture_that_nobody_could_read_is_refused():
    with pytest.raises(UsageError, match="too many for a picture"):
        svg(part_of(chain(MOST + 1)), "x")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    chakra.write_job(training_step(), tmp_path)
    return tmp_path


def test_the_files_are_well_formed_and_complete(job: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("g.svg", "g.dot", "g.graphml"):
        assert main(["graph", str(job), "-o", str(job / name)]) == 0
    assert "21 nodes and 23 dependencies" in capsys.readouterr().err
    space = "{http://graphml.graphdrawing.org/xmlns}"
    found = ElementTree.parse(job / "g.graphml").getroot()
    assert (len(list(found.iter(f"{space}node"))), len(list(found.iter(f"{space}edge")))) == (21, 23)
    dot = (job / "g.dot").read_text()
    assert (dot.count("[label="), dot.count(" -> ")) == (21, 23)
    picture = ElementTree.parse(job / "g.svg").getroot()
    assert sum("centre" not in (g.get("class") or "") for g in picture) >= 21
    assert main(["graph", str(job), "-o", str(job / "g.png")]) == 2


def test_names_are_escaped(tmp_path: Path):
    text = svg(part_of(chain(3)), "three")
    said = [t.text for t in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    assert said[-2:] == ['k2 <"&">', "node 2 · 5 ns"]


def test_an_operators_own_time_says_whose_it_is():
    b = TraceBuilder()
    outer = b.add(Kind.COMP, "aten::linear", cpu=1, thread=1)
    b.add(Kind.COMP, "host", cpu=1, thread=1, parent=outer, duration_ns=1500, data=[outer])
    text = svg(part_of(job_of("one", [b]).traces[0]), "own time")
    said = [t.text for t in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    assert said[-2:] == ["in aten::linear", "node 1 · 1.5 µs"]
