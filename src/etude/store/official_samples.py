"""The 14 small traces that Chakra's official generator writes for each NPU: one or two nodes of every kind.

Ids continue from file to file, as theirs do.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from etude.base.errors import UsageError
from etude.base.files import write_pieces
from etude.kernels.varint import encode_varint
from etude.model.job import MAX_WORLD
from etude.store.json_read import metadata_bytes
from etude.store.json_values import Encoder, Node
from etude.store.official_commands import Generator

VERSION: Final = "1.0.0"
_ON_DEVICE: Final = {"name": "is_cpu_op", "boolVal": False}
_TYPES: Final = {"ALL_REDUCE": 0, "ALL_TO_ALL": 6, "ALL_GATHER": 2, "REDUCE_SCATTER": 7, "BROADCAST": 5, "BARRIER": 9}
_TEN: Final = [str(12345 + i) for i in range(10)]


def _both(kind: str, values: tuple[Any, Any], *, documented: bool = True) -> list[dict[str, Any]]:
    """An attribute of a kind and one of its list; only the single one is documented."""
    doc = {"docString": kind} if documented else {}
    of_list = {"name": f"{kind}_list", f"{kind}List": {"values": values[1]}}
    return [{"name": kind, f"{kind}Val": values[0]} | doc, of_list]


_EVERY_KIND: Final = [
    *_both("double", (1.2345, [1.2345, 2.3456])),
    *_both("float", (1.2345, [1.2345, 2.3456])),
    *_both("int32", (12345, [12345, 23456])),
    *_both("int64", (9876543210, [9876543210, 1234567890])),
    *_both("uint32", (12345, [12345, 23456])),
    *_both("uint64", (9876543210, [9876543210, 1234567890])),
    *_both("sint32", (-12345, [12345, -23456])),
    *_both("sint64", (-9876543210, [9876543210, -1234567890])),
    *_both("fixed32", (12345, [12345, 23456]), documented=False),
    *_both("fixed64", (9876543210, [9876543210, 1234567890]), documented=False),
    *_both("sfixed32", (-12345, [12345, -23456]), documented=False),
    *_both("sfixed64", (-9876543210, [9876543210, -1234567890]), documented=False),
    *_both("bool", (True, [i % 2 == 0 for i in range(10)])),
    *_both("string", ("12345", _TEN)),
    *_both(
        "bytes",
        (base64.b64encode(b"12345").decode(), [base64.b64encode(x.encode()).decode() for x in _TEN]),
        documented=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    num_npus: int = 64
    runtime_us: int = 5
    tensor_bytes: int = 1024
    comm_bytes: int = 65536

    @classmethod
    def of(cls, asked: Generator) -> SampleOptions:
        return cls(
            num_npus=asked.num_npus,
            runtime_us=asked.default_runtime,
            tensor_bytes=asked.default_tensor_size,
            comm_bytes=asked.default_comm_size,
        )

    def __post_init__(self) -> None:
        if not 1 <= self.num_npus <= MAX_WORLD:
            raise UsageError(f"{self.num_npus:,} NPUs", hint=f"from 1 to {MAX_WORLD:,}")
        if min(self.runtime_us, self.tensor_bytes, self.comm_bytes) < 0:
            raise UsageError("run times and sizes must not be negative", hint="--default_runtime 5")


Nodes = Callable[[SampleOptions], list[dict[str, Any]]]


def _memory(kind: str) -> Nodes:
    return lambda o: [_node(kind, {"name": "tensor_size", "uint64Val": o.tensor_bytes})]


def _compute(count: int, *, chained: bool = False) -> Nodes:
    def nodes(o: SampleOptions) -> list[dict[str, Any]]:
        found = [_node("COMP_NODE") | {"durationMicros": o.runtime_us} for _ in range(count)]
        return [node | ({"after": i - 1} if chained and i else {}) for i, node in enumerate(found)]

    return nodes


def _collective(name: str) -> Nodes:
    def nodes(o: SampleOptions) -> list[dict[str, Any]]:
        size = 0 if name == "BARRIER" else o.comm_bytes
        attrs = {"name": "comm_type", "int64Val": _TYPES[name]}, {"name": "comm_size", "int64Val": size}
        return [_node("COMM_COLL_NODE", *attrs) | {"name": name}]

    return nodes


def _node(kind: str, *attrs: dict[str, Any]) -> dict[str, Any]:
    return {"name": kind, "type": kind, "attr": [_ON_DEVICE, *attrs]}


SAMPLES: Final[dict[str, Nodes]] = {
    "one_metadata_node_all_types": lambda o: [{"name": "METADATA_NODE", "type": "METADATA_NODE", "attr": _EVERY_KIND}],
    "one_remote_mem_load_node": _memory("MEM_LOAD_NODE"),
    "one_remote_mem_store_node": _memory("MEM_STORE_NODE"),
    "one_comp_node": _compute(1),
    "two_comp_nodes_independent": _compute(2),
    "two_comp_nodes_dependent": _compute(2, chained=True),
    **{name: _collective(name) for name in _TYPES},
    "one_comm_send_node": _memory("COMM_SEND_NODE"),
    "one_comm_recv_node": _memory("COMM_RECV_NODE"),
}


def write_samples(options: SampleOptions, advance: Callable[[int], None]) -> str:
    """All samples into the current folder; `advance` is called for each file. Returns what was written, in words."""
    for name, content in sample_files(options):
        write_pieces(name, [content])
        advance(1)
    files = len(SAMPLES) * options.num_npus
    return f"wrote {files:,} files: {len(SAMPLES)} samples for {options.num_npus:,} NPUs"


def sample_files(options: SampleOptions) -> Iterator[tuple[str, bytes]]:
    """(File name, content), sample by sample and in each of them NPU by NPU."""
    head = _delimited(metadata_bytes({"version": VERSION}, "", "$"))
    encoder, next_id = Encoder(), 0
    for name, make in SAMPLES.items():
        nodes = make(options)
        for npu in range(options.num_npus):
            content = head
            for i, said in enumerate(nodes):
                given = {key: value for key, value in said.items() if key != "after"} | {"id": next_id + i}
                if "after" in said:
                    given["dataDeps"] = [next_id + said["after"]]
                content += _delimited(encoder.node(msgspec.convert(given, Node)))
            next_id += len(nodes)
            yield f"{name}.{npu}.et", content


def _delimited(message: bytes) -> bytes:
    return encode_varint(len(message)) + message
