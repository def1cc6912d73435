"""`etude chakra`: the official tools' files, byte for byte where they are at hand; a small case of each by hand."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToJson

import chakra_pb as pb
from etude.surface.cli import main
from recorded import device_json, host_json, kernel, launch, node, op

ORACLE = "oracle/chakra_official"
LINKED = ("h200_nccl/sync", "h200_nccl/fsdp", "h200_nccl/coll", "h200_gpt_train")
CONVERTED = (
    ("h200_nccl/sync/linked.0", "h200_nccl/sync/chakra_trace.0"),
    ("h200_nccl/fsdp/linked.0", "h200_nccl/fsdp/chakra_trace.0"),
    ("h200_nccl/coll/linked_noreduce.0", "h200_nccl/coll/chakra_trace_noreduce.0"),
    ("h200_gpt_train/linked.0", "h200_gpt_train/chakra_trace.0"),
    ("host_only/1.0.3.host", "host_only/1.0.3"),
    ("official_tests/1.0.2-chakra.0.0.4.host", "official_tests/1.0.2-chakra.0.0.4"),
)


def chakra(*args: object) -> int:
    return main(["chakra", *map(str, args)])


def link(folder: Path, host: Path, device: Path) -> Path:
    out = folder / "linked.json"
    files = "--chakra-host-trace", host, "--chakra-device-trace", device, "--output-file", out
    assert chakra("trace_link", "--rank", 0, *files) == 0
    return out


def convert(folder: Path, source: Path, *more: object) -> Path:
    out = folder / "rank.0.et"
    assert chakra("converter", *more, "PyTorch", "--input", source, "--output", out) == 0
    return out


def unpacked(path: Path) -> bytes:
    with gzip.open(path) as file:
        return file.read()


def written(folder: Path, name: str, value: Any) -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A parent that calls a child, which launches a kernel; ids 3 and 7, so that new ones differ."""
    host = host_json(node(7, "child", 3, rf_id=2), node(3, "parent", 2, rf_id=1))
    device = device_json(
        op("parent", 0, 100.5, rf=1),
        op("child", 10, 30, rf=2),
        launch(15, 50),
        kernel("gemm", 40.25, 25.9, 50, rf=2, stream=13),
    )
    return written(tmp_path, "host.json", host), written(tmp_path, "device.json", device)


# -- trace_link --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", LINKED)
def test_linked_files_are_theirs_byte_for_byte(shared: Path, tmp_path: Path, run: str) -> None:
    folder = shared / ORACLE / run
    out = link(tmp_path, folder / "host.0.json.gz", folder / "device.0.json.gz")
    assert out.read_bytes() == unpacked(folder / "linked.0.json.gz")


def test_a_linked_file_by_hand(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    text = link(tmp_path, *pair).read_text()
    found = json.loads(text)
    assert text == json.dumps(found, indent=4)
    assert list(found) == ["schema", "pid", "time", "start_ts", "nodes", "finish_ts"]
    process, thread, parent, child, gemm = found["nodes"]
    assert [n["id"] for n in found["nodes"]] == [0, 1, 2, 3, 4]
    assert [n["ctrl_deps"] for n in found["nodes"]] == [0, 0, 1, 2, 3]
    assert "ts" not in process and "ts" not in thread
    assert (parent["ts"], parent["inclusive_dur"], parent["exclusive_dur"]) == (0.0, 100.5, 70.5)
    assert (child["ts"], child["inter_thread_dep"]) == (10.0, None)
    assert (gemm["cat"], gemm["ph"], gemm["stream"], gemm["ts"], gemm["exclusive_dur"]) == (
        "kernel", "X", 13, 40.25, 25.9,
    )  # fmt: skip
    assert gemm["attrs"] == child["attrs"] and gemm["inputs"] == child["inputs"]
    assert "pg_name" not in gemm


# -- converter ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "wanted"), CONVERTED, ids=[source for source, _ in CONVERTED])
def test_converted_files_are_theirs_byte_for_byte(shared: Path, tmp_path: Path, source: str, wanted: str) -> None:
    out = convert(tmp_path, shared / ORACLE / f"{source}.json.gz")
    assert out.read_bytes() == unpacked(shared / ORACLE / f"{wanted}.et.gz")


def test_a_linked_file_and_its_pair_give_the_same_trace(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    direct = tmp_path / "direct.et"
    assert main(["link", *map(str, pair), "-o", str(direct), "--as-official"]) == 0
    assert convert(tmp_path, link(tmp_path, *pair)).read_bytes() == direct.read_bytes()


def test_an_error_names_its_place_in_the_indented_file(
    tmp_path: Path, pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = link(tmp_path, *pair).read_text().replace('"ctrl_deps": 2', '"ctrl_deps" 2')
    files = "--input", written(tmp_path, "bad.json", text), "--output", tmp_path / "a.et"
    assert chakra("converter", "PyTorch", *files) == 2
    assert str(text.index('"ctrl_deps" 2') + len('"ctrl_deps" ')) in capsys.readouterr().err.replace(",", "")


def test_simulated_lines_are_theirs(shared: Path, tmp_path: Path) -> None:
    folder, log = shared / ORACLE / "h200_nccl/sync", tmp_path / "log.txt"
    files = "--input", folder / "linked.0.json.gz", "--output", tmp_path / "a.et"
    assert chakra("converter", "--log-filename", log, "PyTorch", *files, "--simulate") == 0
    head, *events, tail = unpacked(folder / "simulate_events.0.txt.gz").decode().splitlines()
    assert "writing completed" in head and tail.startswith("Simulation")
    assert log.read_text().splitlines() == events


def test_simulated_lines_by_hand(tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A node takes 1 us at least, releases others 1 us after it was issued, and the host runs one at a time."""
    monkeypatch.chdir(tmp_path)
    source = link(tmp_path, *pair)
    assert chakra("converter", "PyTorch", "--input", source, "--output", "a.et", "--simulate") == 0
    assert (tmp_path / "debug.log").read_text().splitlines() == [
        "Issuing CPU Node ID 1 ([pytorch|profiler|execution_trace|thread]) at 0us with duration 0us, tid: 1",
        "CPU Node ID 1 completed at 1us, tid: 1",
        "Issuing CPU Node ID 2 (parent) at 1us with duration 70us, tid: 1",
        "CPU Node ID 2 completed at 71us, tid: 1",
        "Issuing CPU Node ID 3 (child) at 71us with duration 30us, tid: 1",
        "Issuing GPU Node ID 4 (gemm) at 72us on stream 13 with duration 25us, tid: stream 13",
        "GPU Node ID 4 on stream 13 completed at 97us, tid: stream 13",
        "CPU Node ID 3 completed at 101us, tid: 1",
    ]


@pytest.mark.parametrize("name", ["DLRM_HybridParallel", "Resnet50_DataParallel", "microAllReduce"])
def test_text_workloads_are_theirs_byte_for_byte(shared: Path, tmp_path: Path, name: str) -> None:
    folder = shared / ORACLE / "text"
    files = "--input", folder / f"{name}.txt", "--output", tmp_path / name
    assert chakra("converter", "Text", *files, "--num-npus", 4, "--num-passes", 2) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.{rank}.et" for rank in range(4)]
    for rank in (0, 1):
        assert (tmp_path / f"{name}.{rank}.et").read_bytes() == (folder / f"{name}.{rank}.et").read_bytes()


def test_a_text_workload_by_hand(tmp_path: Path) -> None:
    source = written(tmp_path, "w.txt", "DATA\n1\nfc -1 10 NONE 0 20 NONE 0 30 ALLREDUCE 4096 5\n")
    files = "--input", source, "--output", tmp_path / "w"
    assert chakra("converter", "Text", *files, "--num-npus", 2, "--num-passes", 1) == 0
    _, nodes = pb.read_messages((tmp_path / "w.1.et").read_bytes())
    assert [n.name for n in nodes if n.type == 7] == ["COMM_COLL_NODE_fc_ALLREDUCE"]


# -- jsonizer ----------------------------------------------------------------------------------------------------------


def test_json_text_is_theirs_byte_for_byte(shared: Path, tmp_path: Path) -> None:
    folder, out = shared / ORACLE / "h200_nccl/sync", tmp_path / "a.json"
    source = folder / "chakra_trace.0.et.gz"
    assert chakra("jsonizer", "--input_filename", source, "--output_filename", out) == 0
    assert out.read_bytes() == unpacked(folder / "jsonizer.0.json.gz")


def samples(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: object) -> dict[str, bytes]:
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert chakra("generator", "--num_npus", 2, *more) == 0
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_json_text_is_that_of_protobuf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of attribute; and names that are not ASCII."""
    found = samples(tmp_path / "samples", monkeypatch)
    head, nodes = pb.read_messages(found["one_metadata_node_all_types.0.et"])
    named = pb.SCHEMA.Node(id=5, name='größe 🙂 "x"\n', type=4, data_deps=[0])
    source, out = tmp_path / "a.et", tmp_path / "a.json"
    source.write_bytes(pb.write_messages(head, [*nodes, named]))
    wanted = [MessageToJson(message) for message in (head, *nodes, named)]
    assert chakra("jsonizer", "--input_filename", source, "--output_filename", out) == 0
    assert out.read_text() == "".join(wanted)
    assert chakra("jsonizer", "--input_filename", source, "--output_filename", out, "--valid") == 0
    assert json.loads(out.read_text()) == [json.loads(text) for text in wanted]


# -- visualizer --------------------------------------------------------------------------------------------------------


def test_graphml_is_theirs_byte_for_byte(shared: Path, tmp_path: Path) -> None:
    folder, out = shared / ORACLE / "h200_nccl/sync", tmp_path / "a.graphml"
    source = folder / "chakra_trace.0.et.gz"
    assert chakra("visualizer", "--input_filename", source, "--output_filename", out) == 0
    assert out.read_bytes() == unpacked(folder / "visualizer.0.graphml.gz")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """3 waits for 9, which is not there, and both ways for 1."""
    nodes = [pb.SCHEMA.Node(id=1, name="a<b>"), pb.SCHEMA.Node(id=3, name="c", data_deps=[9, 1], ctrl_deps=[1])]
    path = tmp_path / "g.et"
    path.write_bytes(pb.write_messages(pb.SCHEMA.GlobalMetadata(version="1"), nodes))
    return path


def test_graphml_by_hand(tmp_path: Path, graph: Path) -> None:
    out = tmp_path / "g.graphml"
    assert chakra("visualizer", "--input_filename", graph, "--output_filename", out) == 0
    lines = [line.strip() for line in out.read_text().splitlines()[2:]]
    assert lines == [
        '<key id="d1" for="edge" attr.name="dependency" attr.type="string" />',
        '<key id="d0" for="node" attr.name="label" attr.type="string" />',
        '<graph edgedefault="directed">',
        '<node id="1">', '<data key="d0">a&lt;b&gt;</data>', "</node>",
        '<node id="3">', '<data key="d0">c</data>', "</node>",
        '<node id="9" />',
        '<edge source="1" target="3">', '<data key="d1">control</data>', "</edge>",
        '<edge source="9" target="3">', '<data key="d1">data</data>', "</edge>",
        "</graph>", "</graphml>",
    ]  # fmt: skip


def test_dot_by_hand(tmp_path: Path, graph: Path) -> None:
    out = tmp_path / "g.dot"
    assert chakra("visualizer", "--input_filename", graph, "--output_filename", out) == 0
    assert out.read_text().splitlines() == [
        "digraph {",
        '\t1 [label="a\\<b\\>" id=1 shape=record]',
        '\t3 [label="c" id=3 shape=record]',
        "\t9 -> 3 [arrowhead=normal]",
        "\t1 -> 3 [arrowhead=normal]",
        "\t1 -> 3 [arrowhead=tee]",
        "}",
    ]


# -- generator ---------------------------------------------------------------------------------------------------------


def test_samples_are_theirs_byte_for_byte(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(shared / ORACLE / "generator/generator_num_npus_2.tar.gz") as archive:
        members = [(member, archive.extractfile(member)) for member in archive if member.isfile()]
        wanted = {Path(member.name).name: file.read() for member, file in members if file is not None}
    assert samples(tmp_path / "samples", monkeypatch) == wanted
    assert len(wanted) == 28


def test_samples_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids count on over the NPUs of a sample and over samples; the flags reach the nodes."""
    found = samples(tmp_path / "samples", monkeypatch, "--default_runtime", 8, "--default_comm_size", 77)
    messages = {name: pb.read_messages(content)[1] for name, content in found.items()}
    assert sorted(n.id for nodes in messages.values() for n in nodes) == list(range(32))
    first, second = messages["two_comp_nodes_dependent.1.et"]
    assert list(second.data_deps) == [first.id] and second.duration_micros == 8
    size = {a.name: a.int64_val for a in messages["REDUCE_SCATTER.0.et"][0].attr}
    assert size["comm_size"] == 77 and size["comm_type"] == 7


# -- timeline_visualizer -----------------------------------------------------------------------------------------------


def timeline(folder: Path, source: Path, npus: int = 2, mhz: int = 1000) -> tuple[int, Path]:
    out = folder / "t.json"
    files = "--input_filename", source, "--output_filename", out
    return chakra("timeline_visualizer", *files, "--num_npus", npus, "--npu_frequency", mhz), out


def test_a_timeline_is_theirs_byte_for_byte(shared: Path, tmp_path: Path) -> None:
    folder = shared / ORACLE / "timeline"
    code, out = timeline(tmp_path, folder / "input.csv")
    assert (code, out.read_bytes()) == (0, (folder / "output.json").read_bytes())


def test_a_timeline_by_hand(tmp_path: Path) -> None:
    """2 MHz: 3,000 cycles are 1.5 ms."""
    lines = ["noise", "issue,s=0,t=1000,i=4,n=COMM_SEND_NODE_x", "callback,s=0,t=4000,i=4,n=COMM_SEND_NODE_x"]
    code, out = timeline(tmp_path, written(tmp_path, "log.csv", "\n".join(lines)), 1, 2)
    event = {"pid": 0, "tid": 4, "ts": 0.5, "dur": 1.5, "ph": "X", "name": "COMM_SEND_NODE_x", "args": {"ms": 1.5}}
    assert code == 0
    assert json.loads(out.read_text()) == {"meta_user": "aras", "traceEvents": [event], "meta_cpu_count": 1}


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("issue,s=0", "line 1: not an event"),
        ("issue,s=5,t=0,i=0,n=COMP_NODE", "NPU 5 of 2"),
        ("callback,s=0,t=0,i=3,n=COMP_NODE", "was not issued"),
        ("issue,s=0,t=0,i=0,n=aten::mm\ncallback,s=0,t=1,i=0,n=aten::mm", "`aten::mm` does not contain"),
    ],
)
def test_bad_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    code, out = timeline(tmp_path, written(tmp_path, "log.csv", text))
    assert code == 2 and said in capsys.readouterr().err and not out.exists()


def test_wrong_kinds_of_files(tmp_path: Path, pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    host, device = pair
    out = tmp_path / "out"
    swapped = "--chakra-host-trace", device, "--chakra-device-trace", host, "--output-file", out
    assert chakra("trace_link", "--rank", 0, *swapped) == 2
    assert "is a device trace, but a host trace is needed" in capsys.readouterr().err
    assert chakra("jsonizer", "--input_filename", host, "--output_filename", out) == 2
    assert "is JSON, but a Chakra trace" in capsys.readouterr().err
    assert chakra("visualizer", "--input_filename", host, "--output_filename", tmp_path / "a.png") == 2
    assert "a graph cannot be written as `.png`" in capsys.readouterr().err
    assert chakra("jsonizer", "--input_filename", tmp_path / "none.et", "--output_filename", out) == 2
    assert "none.et" in capsys.readouterr().err
    assert chakra("converter", "PyTorch", "--input", device, "--output", out) == 2
    assert chakra("generator", "--num_npus", 0) == 2
    assert not out.exists()


def test_a_pdf_needs_graphviz(
    tmp_path: Path, graph: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chakra("visualizer", "--input_filename", graph, "--output_filename", tmp_path / "g.pdf") == 2
    assert "needs the program `dot`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"inter_thread_dep": 99}, "continues node 99, which is not in the trace"),
        ({"inter_thread_dep": 3}, "in a cycle"),
        ({"exclusive_dur": "soon"}, "is not a number"),
        ({"cat": "kernel", "ctrl_deps": 99}, "no operator of the host launched it"),
    ],
)
def test_linked_files_that_no_linker_wrote(
    tmp_path: Path, pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str], change: dict[str, Any], said: str
) -> None:
    found = json.loads(link(tmp_path, *pair).read_text())
    found["nodes"][2] |= change
    bad = written(tmp_path, "bad.json", found)
    assert chakra("converter", "PyTorch", "--input", bad, "--output", tmp_path / "a.et") == 2
    assert said in capsys.readouterr().err
