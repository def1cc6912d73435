"""Host traces: every schema as the same columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etude.base.errors import FormatError
from etude.model.schema import UNKNOWN
from recorded import host_json, node, read_host_json

TENSOR = [11, 2, 0, 16, 4, "cuda:0"]


def test_a_node_is_a_row() -> None:
    mm = node(4, "aten::mm", 2, rf_id=3, tid=1, op_schema="aten::mm(Tensor self) -> Tensor", seq_id=9,
              inputs=([TENSOR], [[4, 4]], ["Tensor(float)"]))  # fmt: skip
    host = read_host_json(host_json(mm))
    assert host.schema == "1.1.1-chakra.0.0.4"
    assert host.members == {"pid": 7, "time": "2026-01-01 00:00:00", "start_ts": 5, "finish_ts": 9}
    assert host.id.tolist() == [4, 2, 1]
    assert host.caller.tolist() == [2, 1, 1]
    assert host.names[host.name[0]] == "aten::mm"
    assert (host.rf_id[0], host.seq_id[0], host.seq_id[1], host.tid[0]) == (3, 9, -1, 1)
    assert host.op_schemas[host.op_schema[0]] == "aten::mm(Tensor self) -> Tensor"
    assert host.value("in_values", 0) == [TENSOR]
    assert host.value("in_types", 0) == ["Tensor(float)"]
    assert host.value("out_shapes", 0) == []
    assert host.value("in_strides", 0) is None
    assert host.is_process_root.tolist() == [False, False, True]
    assert host.is_thread_root.tolist() == [False, True, False]


def test_the_flat_schema_gives_the_same_columns() -> None:
    flat = {"name": "aten::t", "id": 10, "rf_id": 2, "parent": 9, "fw_parent": 0, "seq_id": 660, "scope": 0, "tid": 1,
            "fw_tid": 0, "op_schema": "aten::t(Tensor(a) self)", "inputs": [TENSOR], "input_shapes": [[4, 4]],
            "input_types": ["Tensor(float)"], "outputs": [], "output_shapes": [], "output_types": []}  # fmt: skip
    host = read_host_json({"schema": "1.0.1", "pid": 1, "nodes": [flat]})
    assert (host.id[0], host.caller[0], host.rf_id[0], host.seq_id[0]) == (10, 9, 2, 660)
    assert host.value("in_values", 0) == [TENSOR]
    assert host.value("in_shapes", 0) == [[4, 4]]
    assert host.op_schemas[host.op_schema[0]] == "aten::t(Tensor(a) self)"


def test_collectives_say_what_they_are() -> None:
    comm = {"collective_name": "allreduce", "dtype": "Float", "in_msg_nelems": 64, "out_msg_nelems": 64,
            "in_split_size": "[]", "out_split_size": "[]", "global_rank_start": 0, "global_rank_stride": 1,
            "pg_name": "1", "pg_desc": "tensor_parallel", "pg_size": 2}  # fmt: skip
    host = read_host_json(host_json(node(3, "aten::mm", 2), node(4, "record_param_comms", 2, **comm)))
    assert host.comms.row.tolist() == [1]
    assert host.comms.number["in_msg_nelems"].tolist() == [64]
    assert host.comms.number["pg_size"].tolist() == [2]
    codes, words = host.comms.text["pg_desc"]
    assert words[codes[0]] == "tensor_parallel"


def test_process_groups_are_found() -> None:
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "ranks": [], "group_size": 4,
               "group_count": 2}, {"pg_name": "1", "ranks": [0, 2], "group_size": 2}]  # fmt: skip
    start = node(3, "## process_group:init ##", 2, inputs=([json.dumps(groups)], [[]], ["String"]))
    host = read_host_json(host_json(start, start))
    assert [(g.pg_name, g.ranks, g.group_size) for g in host.groups] == [("0", [], 4), ("1", [0, 2], 2)]


def test_triton_kernels_are_kept_where_they_are() -> None:
    plain = node(3, "aten::mm", 2, kernel_backend="", kernel_file="")
    triton = node(4, "triton_poi_fused", 2, kernel_backend="triton", kernel_file="abc.py")
    host = read_host_json(host_json(plain, triton))
    rows, places = host.kernel["kernel_file"]
    assert rows.tolist() == [1]
    assert host.json.text(int(places[0])) == "abc.py"


def test_unsigned_ids_and_unknown_attributes_pass() -> None:
    host = read_host_json(host_json(node(3, "x", 2, rf_id=2**64 - 1, something_new="y")))
    assert host.rf_id[0] == -1
    missing = {"id": 1, "name": "bare", "attrs": []}
    assert read_host_json({"schema": "1.1.0-chakra.0.0.4", "nodes": [missing]}).tid[0] == UNKNOWN


@pytest.mark.parametrize("cut", [1, 20, 60, 90, 200, 400])
def test_a_cut_file_is_refused_with_its_place(cut: int) -> None:
    text = json.dumps(host_json(node(3, "aten::mm", 2))).encode()
    with pytest.raises(FormatError, match=r"^h\.json: ") as caught:
        read_host_json(text[:-cut], "h.json")
    assert caught.value.offset is None or caught.value.offset <= len(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "schema"),
        (b'{"schema": "1.1.0-chakra.0.0.4", "nodes": [{"id": 1 "name": "x"}]}', "byte 52"),
        (b'{"schema": "1.1.0-chakra.0.0.4", "nodes": [{"id": 1, "name": "x"},]}', "byte 66"),
        (b'{"schema": "1.1.0-chakra.0.0.4", "nodes": []} x', "byte 46"),
        (b'{"schema": "1.1.0-chakra.0.0.4", "pid": 3}', "no list `nodes`"),
        (b'{"schema": "1.1.0-chakra.0.0.4", "nodes": [{"name": "x"}]}', "has no `id`"),
        (b'{"traceEvents": []}', "not a host trace"),
    ],
)
def test_garbage_is_refused(text: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        read_host_json(text)


def host_files(shared: Path) -> list[Path]:
    found = [*shared.glob("traces/**/*et.json.gz"), *shared.glob("oracle/chakra_official/**/*host*.json.gz")]
    return sorted(p for p in found if not p.name.startswith("big_"))


def test_every_recorded_host_trace_reads(shared: Path) -> None:
    from etude.capture.ingest.reading import load_host

    files = host_files(shared)
    assert len(files) > 60
    for path in files:
        host = load_host(path)
        assert host.is_process_root.sum() == 1, path
        assert (host.rf_id != UNKNOWN).all(), path
        assert set(host.caller.tolist()) <= set(host.id.tolist()), path
