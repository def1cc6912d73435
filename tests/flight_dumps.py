"""Dumps of the Flight Recorder: good ones as PyTorch writes them, and ones that are damaged or claim too much."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def entry(number: int, op: str = "nccl:all_reduce", **changes: Any) -> dict[str, Any]:
    """One call as the recorder has it; it is done unless `done=False`."""
    done, began = changes.pop("done", True), 1_000_000 * (number + 1)
    elements = changes.pop("elements", 1024)
    found = {
        "record_id": number, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number,
        "p2p_seq_id": 0, "op_id": number, "profiling_name": op, "time_created_ns": began,
        "input_sizes": [[elements]], "input_dtypes": ["Float"], "output_sizes": [[elements]],
        "output_dtypes": ["Float"], "state": "completed" if done else "started",
        "time_discovered_started_ns": began + 10, "time_discovered_completed_ns": began + 500 if done else None,
        "retired": done, "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip
    return found | changes


def message(number: int, op: str, **changes: Any) -> dict[str, Any]:
    return entry(number, op, is_p2p=True, p2p_seq_id=number, collective_seq_id=0) | changes


def dump(entries: Any, ranks: Any = "[0, 1, 2, 3]", **changes: Any) -> dict[str, Any]:
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "", "ranks": ranks}},
        "entries": entries,
    } | changes


def write(folder: Path, ranks: dict[int, list[dict[str, Any]]], groups: dict[str, list[int]] | None = None) -> Path:
    """Dumps of these ranks, even ones as pickles and odd ones as JSON."""
    named = groups or {"0": list(ranks)}
    config = {name: {"name": name, "desc": "", "ranks": str(members)} for name, members in named.items()}
    for rank, entries in ranks.items():
        found = dump(entries, pg_config=config)
        content = json.dumps(found).encode() if rank % 2 else pickle.dumps(found)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(content)
    return folder


GOOD = dump([entry(0), entry(1)], rank=0)


def refused() -> Iterator[tuple[str, bytes]]:
    """Files that are known as dumps by their first bytes, and must be refused."""
    yield from ((f"json: {name}", json.dumps(found).encode()) for name, found in _wrong_fields())
    yield from ((f"pickle: {name}", pickle.dumps(found)) for name, found in _wrong_fields())
    yield from _damaged()
    yield from _bombs()


def _wrong_fields() -> Iterator[tuple[str, Any]]:
    one = entry(0)
    for name, value in (
        ("record_id", "first"), ("record_id", -3), ("record_id", 2**80), ("profiling_name", 7),
        ("profiling_name", None),
        ("process_group", 0), ("process_group", [["0"]]), ("collective_seq_id", 1.5), ("collective_seq_id", -1),
        ("collective_seq_id", True), ("time_created_ns", "now"), ("time_created_ns", 2**70),
        ("time_discovered_completed_ns", [1]), ("retired", "yes"), ("is_p2p", 3), ("state", 4),
        ("input_sizes", 1024), ("input_sizes", [1024]), ("input_sizes", [["a"]]), ("input_sizes", [[-1]]),
        ("input_sizes", [[[2]]]), ("input_sizes", [[1] * 65]), ("input_dtypes", "Float"), ("output_dtypes", [1]),
    ):  # fmt: skip
        yield f"{name} = {str(value)[:20]}", dump([one | {name: value}], rank=0)
    for ranks in (-1, [-1], ["0"], [2**40], "[0, 99999999999]", "[0, x]", [0, 0], {"a": 1}, [[0]]):
        yield f"ranks = {str(ranks)[:20]}", dump([one], ranks, rank=0)
    for size in (50_000_000, -1, "four", 1, 2**63):
        config = [{"pg_name": "0", "ranks": [0, 1], "group_size": size}]
        yield f"group_size = {size}", dump([one], pg_config=config, rank=0)
    for rank in (-1, "0", 2**31, 1.5, None if False else [0]):
        yield f"rank = {rank}", dump([one], rank=rank)
    yield "entries = None", dump(None, rank=0, why="collective_seq_id")
    yield "entries = {}", dump({"collective_seq_id": 1}, rank=0)
    yield "entries = texts", dump(["collective_seq_id"], rank=0)
    yield "entries = lists", dump([[one]], rank=0)
    yield "pg_config = 5", dump([one], pg_config=5, rank=0)
    yield "pg_config = text", dump([one], pg_config="0", rank=0)
    yield "pg_config = list of texts", dump([one], pg_config=["0"], rank=0)
    without = {key: value for key, value in one.items() if key != "profiling_name"}
    yield "no name", dump([without], rank=0)


def _damaged() -> Iterator[tuple[str, bytes]]:
    whole_json, whole_pickle = json.dumps(GOOD).encode(), pickle.dumps(GOOD)
    for part in (0.5, 0.7, 0.9):
        yield f"json cut at {part}", whole_json[: int(part * len(whole_json))]
        yield f"pickle cut at {part}", whole_pickle[: int(part * len(whole_pickle))]
        packed = gzip.compress(whole_pickle * 400, 1, mtime=0)
        yield f"gzip cut at {part}", packed[: int(part * len(packed))]
    yield "json with a byte of no text", whole_json.replace(b"completed", b"compl\xffted")
    yield "json and more", whole_json + b"}{"
    yield "json with NaN", whole_json.replace(b"1024", b"NaN")
    yield "deep json", b'{"entries": "collective_seq_id", "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    yield "a list", pickle.dumps([GOOD])
    yield "nothing but a sign", b"\x80\x04entries collective_seq_id"
    for offset in (20, 60, 100, 140):
        yield f"pickle with a wrong byte at {offset}", whole_pickle[:offset] + b"\xff" + whole_pickle[offset + 1 :]


SIGN = b"X" + struct.pack("<I", 26) + b"entries  collective_seq_id"


def _bombs() -> Iterator[tuple[str, bytes]]:
    yield "code: GLOBAL", b"\x80\x02" + SIGN + b"cos\nsystem\n(X\x04\x00\x00\x00echotR."
    yield "code: STACK_GLOBAL", b"\x80\x04" + SIGN + b"\x8c\x02os\x8c\x06system\x93\x8c\x04echo\x85R."
    yield "code: INST", b"\x80\x02" + SIGN + b"(X\x04\x00\x00\x00echoios\nsystem\n."
    yield "code: REDUCE of a text", b"\x80\x02" + SIGN + b")R."
    yield "extension", b"\x80\x02" + SIGN + b"\x82\x01."
    yield "persistent id", b"\x80\x02" + SIGN + b"Pentries\n."
    yield "memory of 2^31 places", b"\x80\x02" + SIGN + b"r\xff\xff\xff\x7f."
    yield "memory of many places, as text", b"\x80\x02" + SIGN + b"p4000000000\n."
    yield "a text of 8 EB", b"\x80\x04" + SIGN + b"\x8d" + struct.pack("<Q", 2**62) + b"a."
    yield "bytes of 4 GB", b"\x80\x04" + SIGN + b"B" + struct.pack("<I", 2**32 - 1) + b"a."
    yield "byte array", b"\x80\x05" + SIGN + b"\x96" + struct.pack("<Q", 2**40) + b"a."
    yield "a frame of 1 TB", b"\x80\x04" + SIGN + b"\x95" + struct.pack("<Q", 2**40) + b"."
    yield "a number of 2 GB", b"\x80\x02" + SIGN + b"\x8b\xff\xff\xff\x7f1."
    yield "no stack", b"\x80\x02" + SIGN + b"000000."
    yield "items of no dict", b"\x80\x02" + SIGN + b"K\x01K\x02s."
    yield "a list as a key", b"\x80\x02}" + SIGN + b"0]K\x01s."
    sizes = [[1]] * 3000
    yield "one list in many places", pickle.dumps(dump([entry(0, input_sizes=sizes) for _ in range(3000)], rank=0))
    ranks = list(range(20_000))
    config = {str(i): {"name": str(i), "ranks": ranks} for i in range(20_000)}
    yield "one group under many names", pickle.dumps(dump([entry(0)], pg_config=config, rank=0))


def read() -> Iterator[tuple[str, bytes, int]]:
    """Odd files that are read all the same, with the nodes that they give."""
    yield "as it should be", pickle.dumps(GOOD), 2
    yield "protocol 0", pickle.dumps(GOOD, protocol=0), 2
    yield "protocol 2", pickle.dumps(GOOD, protocol=2), 2
    yield "packed", gzip.compress(json.dumps(GOOD).encode(), mtime=0), 2
    yield "nothing happened", json.dumps(dump([], rank=0)).encode(), 0
    yield "no groups", json.dumps({"entries": [entry(0)], "rank": 0}).encode(), 1
    yield "fields that nobody knows", json.dumps(dump([entry(0, colour="red")], rank=0, weather={})).encode(), 1
    old = {
        key: entry(0)[key] for key in ("record_id", "pg_id", "collective_seq_id", "profiling_name", "time_created_ns")
    }
    yield "fields that are not there", json.dumps(dump([old], rank=0)).encode(), 1
    yield "sizes without types", json.dumps(dump([entry(0, input_dtypes=None)], rank=0)).encode(), 1
    yield "a name that nobody knows", json.dumps(dump([entry(0, "nccl:frobnicate")], rank=0)).encode(), 1
    yield "a message to nobody", json.dumps(dump([message(0, "nccl:send")], rank=0)).encode(), 1
    yield "a message to a rank of no group", json.dumps(dump([message(0, "nccl:send 0->99")], rank=0)).encode(), 1
