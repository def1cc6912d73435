"""The linked JSON: the compiled writer against dicts and `json.dumps`, for all that a host trace may hold."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.base.errors import FormatError
from etude.capture.ingest.official import json_out
from etude.capture.ingest.official.json_out import linked_json
from recorded import device_json, host_json, kernel, launch, node, op, read_device_json, read_host_json

TEXTS = st.text(max_size=10) | st.sampled_from(['say "x"', "back\\slash", "tab\t", "a/b", "ünï 🙂", "\x7f", "\x00"])
NUMBERS = (
    st.integers() | st.integers(-999, 999) | st.floats() | st.floats(-1, 1) | st.decimals(0, 1, places=7).map(float)
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)
DEVICE = device_json(
    op("parent", 0, 100.5, rf=1),
    op("child", 10, 30.123, rf=2),
    launch(15, 50),
    launch(16, 51),
    kernel("gemm<ü>", 40.25, 25.9, 50, rf=2, stream=13),
    kernel("ncclDevKernel_AllReduce", 80, 2, 51, rf=2, stream=14, **{"Process Group Name": "7"}),
)


def host_text(child: dict[str, Any]) -> str:
    return json.dumps(host_json(child, node(3, "parent", 2, rf_id=1)))


def written(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return b"".join(linked_json(read_host_json(raw), read_device_json(DEVICE)))


def dicts(text: str) -> dict[str, Any]:
    """The same by hand: ids 1, 2, 3 and 7 of the host become 0 to 3; two activities of the last one follow it."""
    raw = json.loads(text, strict=False)
    nodes = {one["id"]: one for one in raw["nodes"]}
    new = {1: 0, 2: 1, 3: 2, 7: 3}
    times = {3: (100.5, 100.5 - 30.123, 0.0), 7: (30.123, 30.123, 10.0)}
    found = []
    for old, one in sorted(nodes.items()):
        one |= {"id": new[old], "ctrl_deps": new[one["ctrl_deps"]]}
        if old in times:
            one |= dict(zip(("inclusive_dur", "exclusive_dur", "ts"), times[old], strict=True))
            one["inter_thread_dep"] = None
        found.append(one)
    for k, (name, took, start, stream) in enumerate(
        (("gemm<ü>", 25.9, 40.25, 13), ("ncclDevKernel_AllReduce", 2.0, 80.0, 14))
    ):
        on_device = {"cat": "kernel", "name": name, "ph": "X", "inclusive_dur": took, "exclusive_dur": took}
        on_device |= {"ts": start, "stream": stream} | ({"pg_name": "7"} if k else {})
        found.append(found[3] | on_device | {"id": 4 + k, "ctrl_deps": 3})
    return raw | {"nodes": found}


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.lists(VALUES, max_size=4))
def test_what_is_written_is_what_json_writes(more: dict[str, Any], values: list[Any]) -> None:
    one = node(7, "child", 3, rf_id=2, inputs=(values, [], []))
    text = host_text({**{key: value for key, value in more.items() if key not in one}, **one})
    assert written(text).decode() == json.dumps(dicts(text), indent=4)


ODD = [
    '"more": 1e5', '"more": 1.0000000000000001e-05', '"more": 0.00001', '"more": 0.000015', '"more": -0.0000120',
    '"more": 0.00001234567890123456', '"more": -0', '"more": -0.0', '"more": 5.00', '"more": 123456789012345678901',
    '"more": 100000000000000000000.0', '"more": 0.30000000000000004', '"more": NaN', '"more": -Infinity',
    '"more": "\\u0041\\/\\ud83d\\ude42"', '"more": "\\n\\t\\r\\b\\f\\\\\\""', '"more": {"a": 1, "a": 2}',
    '"more": {}, "other": []', '"more": [{}, [[]], {"a": []}]', '"more": [true, false, null]',
    '"ts": 5', '"cat": "x"', '"inter_thread_dep": 3, "exclusive_dur": 1', '"stream": 1, "ph": "B", "pg_name": "x"',
    '"inputs": 1', '"more": ' + "[" * 70 + "]" * 70, '"more": "%s"' % ("long " * 600_000),
    f'"more": {list(range(200_000))}',
]  # fmt: skip


@pytest.mark.parametrize("member", ODD, ids=lambda member: member[:40])
def test_odd_members(member: str) -> None:
    text = host_text(node(7, "child", 3, rf_id=2)).replace('"id": 7,', f'"id": 7, {member},', 1)
    assert written(text).decode() == json.dumps(dicts(text), indent=4)


def test_a_caller_that_is_not_there_comes_after_all_others() -> None:
    host = host_json(node(9, "lost", 99, rf_id=5), node(7, "child", 3, rf_id=2), node(3, "parent", 2, rf_id=1))
    nodes = json.loads(written(json.dumps(host)))["nodes"]
    assert [one["ctrl_deps"] for one in nodes] == [0, 0, 1, 2, 3, 3, 7]


def test_rows_that_python_writes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row by the path that the compiled writer leaves odd ones to."""
    text = host_text(node(7, "child", 3, rf_id=2))
    wanted = written(text)
    monkeypatch.setattr(json_out.k, "write_rows", lambda source, rows, at, target: (json_out.k.ODD, at, 0))
    assert written(text) == wanted


def test_small_pieces_give_the_same_file(monkeypatch: pytest.MonkeyPatch) -> None:
    text = host_text(node(7, "child", 3, rf_id=2, inputs=([[1, 2, "x" * 3000]], [], [])))
    wanted = written(text)
    monkeypatch.setattr(json_out, "_PIECE_BYTES", 64)
    assert written(text) == wanted


@pytest.mark.parametrize("wrong", ["01", "+1", "1.", "tru", "[1 2]", "{1: 2}", "[1,]", '"\\x"', "nul"])
def test_what_is_not_json_is_refused(wrong: str) -> None:
    text = host_text(node(7, "child", 3, rf_id=2)).replace('"id": 7,', f'"id": 7, "more": {wrong},', 1)
    with pytest.raises(FormatError, match="not JSON"):
        written(text)


def test_a_byte_order_mark_and_bytes_that_are_no_text() -> None:
    text = host_text(node(7, "child", 3, rf_id=2, op_schema="schema?")).encode()
    assert written(b"\xef\xbb\xbf" + text) == written(text)
    assert b'"schema\\ufffd"' in written(text.replace(b"schema?", b"schema\xff"))


def test_times_are_written_as_python_writes_them() -> None:
    """Absolute times have more digits than a float holds."""
    host = read_host_json(host_text(node(7, "child", 3, rf_id=2)).encode())
    late = [{**one, "ts": one["ts"] + 1691234567890123} for one in DEVICE["traceEvents"]]
    text = b"".join(linked_json(host, read_device_json(device_json(*late)))).decode()
    assert text == json.dumps(json.loads(text), indent=4)
    assert [one.get("ts") for one in json.loads(text)["nodes"]][2:4] == [1691234567890123.0, 1691234567890133.0]
    assert np.isfinite([one.get("ts", 0.0) for one in json.loads(text)["nodes"]]).all()
