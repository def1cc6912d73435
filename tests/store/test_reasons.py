"""Reasons of dependencies in `.et` and JSON: the attribute `dep_why`."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chakra_pb as pb
import etude
from etude.model.build import TraceBuilder, build_trace, job_of
from etude.model.diff import diff
from etude.model.fold import expand, fold
from etude.model.job import Job
from etude.model.schema import Kind, Why
from etude.model.trace import Trace, assert_same
from etude.store import chakra, columns
from etude.store import json as json_store
from etude.surface.cli import main
from store_jobs import encoded, tiny_job, with_timing


def explained(data: list[list[Why]], ctrl: list[list[Why]]) -> Trace:
    """Node i waits for node 0 as often as it has reasons."""

    def csr(whys: list[list[Why]]) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        flat = np.array([w for node in whys for w in node], np.uint8)
        return (np.cumsum([0, *map(len, whys)]), np.zeros(len(flat), np.int32)), flat

    (data_edges, data_why), (ctrl_edges, ctrl_why) = csr(data), csr(ctrl)
    nodes = {"kind": np.full(len(data), Kind.COMP, np.uint8), "name": ["gemm"] * len(data)}
    return build_trace(nodes, data=data_edges, ctrl=ctrl_edges, data_why=data_why, ctrl_why=ctrl_why)


def job(trace: Trace) -> Job:
    return job_of("w", [TraceBuilder()]).replace(traces=(trace,))


def through(trace: Trace) -> Trace:
    return chakra.decode(encoded(job(trace))[0]).trace


def through_json(trace: Trace, folder: Path) -> Trace:
    json_store.write_job(job(trace), folder)
    return json_store.read_job(folder).traces[0]


def test_a_letter_an_edge_data_before_control(tmp_path: Path) -> None:
    trace = explained([[], [Why.LAUNCH, Why.UNKNOWN], [Why.UNKNOWN], []], [[], [Why.PROGRAM], [], [Why.SYNC]])
    _, nodes = pb.read_messages(encoded(job(trace))[0])
    said = [[(a.name, a.string_val) for a in n.attr] for n in nodes]
    assert said == [[], [("dep_why", "l-p")], [], [("dep_why", "y")]]  # nothing known, nothing said
    for back in (through(trace), through_json(trace, tmp_path)):
        assert back.data_why.tolist() == [Why.LAUNCH, 0, 0]
        assert back.ctrl_why.tolist() == [Why.PROGRAM, Why.SYNC]
        assert_same(trace, back)
    assert trace.attributes(1)[0][1] == "l-p"


def test_a_node_tells_its_reasons(tmp_path: Path) -> None:
    trace = explained([[], [Why.EVENT, Why.STREAM]], [[], []])
    chakra.write_job(job(trace), tmp_path)
    node = etude.extend.feeder(job(trace)).node(0, 1)
    assert (node.dep_why, node.attr("dep_why")) == ("es", "es")
    assert etude.extend.open_feeder(tmp_path).node(0, 1).attrs["dep_why"] == "es"


def test_reasons_that_are_taken_away_are_gone() -> None:
    trace = through(explained([[], [Why.TENSOR]], [[], []]))
    forgotten = trace.replace(data_why=np.zeros(1, np.uint8))
    assert "dep_why" not in encoded(job(forgotten))[0].decode("latin1")


WHYS = st.lists(st.lists(st.sampled_from(Why), max_size=4) | st.just([Why.TENSOR] * 200), min_size=6, max_size=6)


@given(WHYS, WHYS)
def test_any_reasons_come_back(data: list[list[Why]], ctrl: list[list[Why]]) -> None:
    trace = explained(data, ctrl)
    assert_same(trace, through(trace))
    assert diff(job(trace), expand(fold(job(trace)))) is None


def foreign(attributes: list[tuple[str, object]], deps: int) -> bytes:
    nodes = [pb.SCHEMA.Node(id=1), pb.SCHEMA.Node(id=2, data_deps=[1] * deps)]
    for field, value in attributes:
        attr = nodes[1].attr.add(name="dep_why")
        if field.endswith("list"):
            getattr(attr, field).values.extend(value)
        else:
            setattr(attr, field, value)
    return pb.write_messages(pb.SCHEMA.GlobalMetadata(version="1"), nodes)


@pytest.mark.parametrize(
    ("attributes", "deps"),
    [
        ([("string_val", "")], 0),
        ([("string_val", "")], 2),
        ([("string_val", "t")], 0),
        ([("string_val", "t")], 2),
        ([("string_val", "ttt")], 2),
        ([("string_val", "--")], 2),
        ([("string_val", "t?")], 2),
        ([("string_val", "é")], 2),  # two bytes
        ([("string_val", "because")], 2),
        ([("int64_val", 7)], 2),
        ([("bytes_val", b"tt")], 2),
        ([("string_list", ["t", "t"])], 2),
        ([("string_val", "no"), ("string_val", "tt")], 2),
    ],
)
def test_what_does_not_fit_the_edges_stays_an_attribute(attributes: list[tuple[str, object]], deps: int) -> None:
    raw = foreign(attributes, deps)
    decoded = chakra.decode(raw)
    assert not decoded.trace.data_why.any()
    assert all(a.column == "" for a, _ in decoded.trace.attributes(1))
    assert len(decoded.trace.attributes(1)) == len(attributes)
    assert chakra.encode(decoded) == raw
    again = json_store.read("".join(json_store.lines(decoded)).encode())
    assert chakra.encode(again) == raw


def test_what_fits_is_read_and_comes_back_byte_for_byte() -> None:
    for attributes in ([("string_val", "t-")], [("string_val", "ac"), ("int64_val", 3), ("string_val", "tt")]):
        raw = foreign(attributes, 2)
        decoded = chakra.decode(raw)
        assert decoded.trace.data_why.any()
        assert chakra.encode(decoded) == raw


def same_everywhere(original: Job, folder: Path) -> None:
    for store in (chakra, json_store, columns):
        place = folder / store.__name__
        place.mkdir()
        store.write_job(original, place)
        assert diff(original, store.read_job(place)) is None, store.__name__


def test_a_linked_job_is_the_same_in_every_store(tmp_path: Path) -> None:
    linked = etude.open(Path(etude.__file__).parent / "capture" / "sample")
    assert {Why.LAUNCH, Why.STREAM} <= set(linked.traces[0].data_why.tolist())
    same_everywhere(linked, tmp_path)


def test_recorded_strides_are_the_same_in_every_store(tmp_path: Path) -> None:
    b = TraceBuilder()
    b.add(Kind.COMP, "aten::mm", in_strides="[[1, 2]]", out_strides="[[2, 1]]")
    same_everywhere(job_of("strides", [b]), tmp_path)


def test_a_generated_job_is_the_same_in_every_store(tmp_path: Path, capsys) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    plan = ["--gpus", "16", "--tp", "2", "--pp", "2", "--ep", "2", "--moe-skew", "1.5", "--zero", "1"]
    assert main(["generate", "mixtral-8x7b", *plan, "-o", str(a)]) == 0
    for to in ("et", "json"):
        capsys.readouterr()
        assert main(["convert", str(a), str(b), "--to", to, "--force"]) == 0
        named = "elements, kind, model, precision, schedule, tool"
        told = f"not written, because {to} cannot represent it: its provenance ({named})"
        assert told in capsys.readouterr().err
        assert main(["diff", str(a), str(b)]) == 0


def test_what_only_parquet_holds_is_told(tmp_path: Path) -> None:
    assert chakra.left_behind(tiny_job()) == []
    assert chakra.left_behind(with_timing(tiny_job())) == [
        "that its times are simulated",
        "how the clocks of its ranks differ",
        "ends of nodes that differ from start + duration",
    ]
    alike = with_timing(tiny_job())
    assert alike.timing is not None
    same = replace(alike.timing, clock_offset_ns=np.zeros(2, np.int64))
    assert chakra.left_behind(alike.replace(timing=same))[1] == "that its ranks share a clock"
    chakra.write_job(tiny_job(), tmp_path)
    assert chakra.left_behind(chakra.read_job(tmp_path)) == []
    assert chakra.left_behind(etude.open(Path(etude.__file__).parent / "capture" / "sample")) == [
        "its provenance (device, threads, unprofiled_least_ns, unprofiled_step_ns)",
        "the times under the profiler",
    ]
