"""`.et` to JSON to `.et` gives the same bytes; protobuf's own JSON reader sees the same messages."""

from __future__ import annotations

import json as plain
from pathlib import Path

import pytest
from google.protobuf import json_format
from hypothesis import HealthCheck, example, given, settings

import chakra_pb as pb
import store_jobs as jobs
import strategies
from etude.base.errors import EtudeError, FormatError
from etude.model.fold import fold
from etude.store import chakra, json
from etude.store.et_decode import Decoded
from etude.store.json_write import lines

NEWER = {"STORAGE_NODE": 8, "BATCH_NODE": 9, "CHECKPOINT_NODE": 10}


def text_of(decoded: Decoded) -> str:
    return "".join(lines(decoded))


def assert_comes_back(data: bytes, label: str = "") -> str:
    decoded = chakra.decode(data)
    text = text_of(decoded)
    assert bytes(chakra.encode(json.read(text.encode()))) == bytes(chakra.encode(decoded)), label
    return text


def assert_protobuf_agrees(data: bytes, text: str) -> None:
    """Each node, parsed by protobuf from our JSON, is the node of the file but for unknown fields."""
    document = plain.loads(text)
    metadata, nodes = pb.read_messages(data)
    pairs = [(pb.GlobalMetadata, document["metadata"], metadata)]
    pairs += [(pb.Node, shown, node) for shown, node in zip(document["nodes"], nodes, strict=True)]
    for kind, shown, message in pairs:
        if shown.get("type") in NEWER:  # names that the schema of these messages does not have yet
            shown["type"] = NEWER[shown["type"]]
        parsed = json_format.ParseDict(shown, kind(), ignore_unknown_fields=True)
        message.DiscardUnknownFields()
        # NaN has one spelling in JSON, so messages are compared as JSON where they differ in bits
        assert pb.same(parsed, message) or json_format.MessageToDict(parsed) == json_format.MessageToDict(message)


@pytest.mark.parametrize("part", ["oracle/astra/et", "oracle/stg", "oracle/chakra_official"])
def test_real_files_come_back(shared: Path, part: str) -> None:
    seen: set[bytes] = set()
    for path in sorted([*(shared / part).rglob("*.et"), *(shared / part).rglob("*.et.gz")]):
        data = bytes(chakra.encode(chakra.decode(path.read_bytes())))
        if data not in seen and (len(seen) < 40 or len(data) < 2_000):
            seen.add(data)
            text = assert_comes_back(data, str(path))
            if len(data) < 100_000:
                assert_protobuf_agrees(data, text)
    assert seen


@settings(max_examples=70, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=strategies.et_files())
@example(data=b"\x00\x02\x18\x08")
@example(data=b"\x00\x02\x18\x0b")
def test_any_file_comes_back(data: bytes) -> None:
    assert_protobuf_agrees(data, assert_comes_back(data))


@pytest.mark.parametrize("bits", [b"\x00\x00\x00\x00\x00\x00\xf8\x7f", b"\x01\x00\x00\x00\x00\x00\xf8\xff"])
def test_every_nan_comes_back(bits: bytes) -> None:
    """JSON has one word for all of them."""
    scalar = strategies.text(1, "a") + strategies.tag(3, strategies.FIXED64) + bits
    many = strategies.text(1, "b") + strategies.block(4, strategies.block(1, bits + bits))
    assert_comes_back(strategies.stream([b"", strategies.node(id=1, attributes=[scalar, many])]))


def test_jobs_come_back(tmp_path: Path) -> None:
    job = jobs.tiny_job()
    for number, one in enumerate((job, fold(job), jobs.with_timing(jobs.with_values(job)))):
        folder = tmp_path / str(number)
        folder.mkdir()
        json.write_job(one, folder)
        assert sorted(p.name for p in folder.iterdir()) == ["tiny.0.json", "tiny.1.json", "tiny.json"]
        again = json.read_job(folder)
        assert jobs.encoded(again) == jobs.encoded(one)
        assert again.groups.ranks(0).tolist() == [1, 0]  # type: ignore[union-attr]


def test_a_node_reads_as_expected(tmp_path: Path) -> None:
    json.write_job(jobs.tiny_job(), tmp_path)
    document = plain.loads((tmp_path / "tiny.0.json").read_text())
    assert document["nodes"][1] == {
        "id": "1",
        "name": "send",
        "type": "COMM_SEND_NODE",
        "dataDeps": ["0"],
        "attr": [
            {"name": "comm_size", "int64Val": "64"},
            {"name": "comm_src", "int32Val": 0},
            {"name": "comm_dst", "int32Val": 1},
            {"name": "comm_tag", "int32Val": 5},
        ],
    }


def test_the_jsonizers_objects_are_read(shared: Path) -> None:
    folder = shared / "oracle/chakra_official/h200_nccl/sync"
    found = json.read_job(folder / "jsonizer.0.json.gz")
    assert jobs.encoded(found) == jobs.encoded(chakra.read_job(folder / "chakra_trace.0.et.gz"))


def test_the_feeders_workload_graph_is_read(shared: Path) -> None:
    job = json.read_job(shared / "oracle/chakra_official/official_tests/small_chakra.0.json")
    trace = job.traces[0]
    assert trace.source_id.tolist()[:3] == [216, 217, 430]
    assert trace.duration_ns.tolist()[:3] == [318_000, 28_000, 4_000]
    assert trace.cpu.tolist()[:3] == [1, 1, 0]
    assert trace.data[trace.data_start[1] : trace.data_start[2]].tolist() == [0]
    assert trace.missing[~trace.ctrl[0]] == 3


def test_workload_graph_attributes() -> None:
    row = '{"Id": 3, "Name": "x", "NodeType": 7, "comm_type": 2, "comm_size": 64, "comm_src": 1, "mine": "a", "x": 1.5}'
    trace = json.read(f'{{"workload_graph": [{row}]}}'.encode()).trace
    assert (trace.collective[0], trace.in_bytes[0], trace.peer_slots) == (3, 64, 1)
    assert [(a.name, v) for a, v in trace.attributes(0) if not a.column] == [("mine", "a"), ("x", 1.5)]


def test_numbers_may_be_written_either_way() -> None:
    node = (
        '{"id": 7, "type": 4, "dataDeps": [1, "2"], "durationMicros": "5", "attr": [{"name": "rf_id", "int64Val": 3}]}'
    )
    trace = json.read(f'{{"nodes": [{node}]}}'.encode()).trace
    assert (trace.source_id[0], trace.duration_ns[0], trace.rf_id[0], trace.missing.tolist()) == (7, 5000, 3, [1, 2])


ATTR = '{"nodes": [{}, {"attr": [{"name": "a"}, %s]}]}'
BAD = [
    ("", "the file is empty"),
    ("[]", "not an object"),
    ("{", "does not end"),
    ('{"nodes": [{]}', "not JSON|does not end|malformed"),
    ('{"nodes": 5}', r"at `\$.nodes`: Expected `array`"),
    ('{"nodes": [], "more": 1}', r"at `\$`: unknown field `more`"),
    ('{"traceEvents": []}', "not a Chakra trace"),
    ('{"something": []}', "is not a trace"),
    ('{"nodes": [{"id": "x"}]}', r"at `\$.nodes\[0\].id`"),
    ('{"nodes": [{"id": -1}]}', r"at `\$.nodes\[0\].id`: -1 does not fit"),
    ('{"nodes": [{"id": "18446744073709551616"}]}', r"does not fit 64 bits"),
    ('{"nodes": [{"type": "NO_NODE"}]}', r"at `\$.nodes\[0\].type`: unknown type `NO_NODE`"),
    ('{"nodes": [{}, {"colour": 1}]}', r"at `\$.nodes\[1\]`: Object contains unknown field `colour`"),
    ('{"nodes": [{"_unknown": "!"}]}', r"at `\$.nodes\[0\]._unknown`: not base64"),
    ('{"nodes": [{}, {"_unknown": "/w=="}]}', r"at `\$.nodes\[1\]`"),
    (
        '{"metadata": {"attr": [{"int32Val": 1.5}]}, "nodes": []}',
        r"at `\$.metadata.attr\[0\].int32Val`: not an integer",
    ),
    (ATTR % '{"int32Val": 2147483648}', r"at `\$.nodes\[1\].attr\[1\].int32Val`: 2147483648 is out of range"),
    (ATTR % '{"int64Val": true}', "not an integer"),
    (ATTR % '{"boolVal": 1}', "not true or false"),
    (ATTR % '{"int32Val": 1, "int64Val": 1}', "both `int32Val` and `int64Val`"),
    (ATTR % '{"int33Val": 1}', "unknown field `int33Val`"),
    (ATTR % '{"int32List": [1]}', "expected"),
    (ATTR % '{"stringList": {"values": ["a", 1]}}', r"at `\$.nodes\[1\].attr\[1\].stringList.values\[1\]`: not text"),
    (ATTR % '{"int32List": {}, "_payload": "Cn8="}', r"at `\$.nodes\[1\]`"),
    ("{}{}{]", r"at `\$\[2\]`: JSON is malformed"),
    ('{}{"id": 1}{"id": "x"}', r"at `\$\[2\].id`"),
    ('{"workload_graph": [{"Id": "x"}]}', r"at `\$.workload_graph\[0\].Id`"),
    ('{"workload_graph": [{"Id": 1, "deep": {}}]}', r"at `\$.workload_graph\[0\].deep`"),
]


@pytest.mark.parametrize(("text", "problem"), BAD)
def test_errors_name_the_file_and_the_path(text: str, problem: str) -> None:
    with pytest.raises(FormatError, match=rf"(?s)^w.0.json.*{problem}"):
        json.read(text.encode(), "w.0.json")


def test_equal_keys_of_different_types_are_not_confused() -> None:
    """1 and true, 0.0 and -0.0 are the same key of a dict; attributes that repeat are looked up in one."""
    attr = '{"name": "x", "%s": %s}'
    good = [("int64Val", "1"), ("int64Val", "1"), ("doubleVal", "0.0"), ("doubleVal", "0.0"), ("doubleVal", "-0.0")]
    text = '{"nodes": [{"attr": [' + ",".join(attr % g for g in good) + "]}]}"
    trace = json.read(text.encode()).trace
    assert [str(v) for _, v in trace.attributes(0)] == ["1", "1", "0.0", "0.0", "-0.0"]
    with pytest.raises(FormatError, match="not an integer"):
        json.read(text.replace('"int64Val": 1}', '"int64Val": true}', 2).replace("true", "1", 1).encode())


def test_cut_short_files_are_refused(tmp_path: Path) -> None:
    json.write_job(jobs.tiny_job(), tmp_path)
    whole = (tmp_path / "tiny.0.json").read_bytes().rstrip()
    for end in range(0, len(whole), 7):
        with pytest.raises(EtudeError):
            json.read(whole[:end], "w.0.json")
