"""Communications from recorded metadata: by hand where tiny, by arithmetic on shapes and groups where real."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.base.errors import FormatError
from etude.capture.ingest.collectives import Communications, communications
from etude.capture.ingest.comm_calls import type_of
from etude.capture.ingest.reading import load_device, load_host
from etude.model.schema import UNKNOWN, Collective, Kind
from recorded import device_json, event, host_json, kernel, launch, node, op, read_device_json, read_host_json

WORLD = '[{"pg_name": "0", "pg_desc": "default_pg", "ranks": [], "group_size": 4}, {"pg_name": "5", "ranks": [1, 3]}]'


def tensor(elements: int, width: int = 4) -> list[Any]:
    return [7, 8, 0, elements, width, "cuda:0"]


def init(id: int) -> dict[str, Any]:
    return node(id, "## process_group:init ##", 2, inputs=([WORLD], [[]], ["String"]))


def record(id: int, caller: int, rf_id: int, name: str, size: int, group: str = "0", rank: int = 0) -> dict[str, Any]:
    values = [[tensor(size)], [3, False], [group, ""], rank, name, [], [], -1, -1, 2]
    types = ["GenericList[Tensor(float)]", "Tuple[Int,Bool]", "Tuple[String,String]", "Int", "String", *["Int"] * 5]
    return node(id, "record_param_comms", caller, rf_id, inputs=(values, [], types), outputs=([[tensor(size)]], [], []))


def c10d(id: int, name: str, rf_id: int, *rest: int, size: int = 64) -> dict[str, Any]:
    values = [[tensor(size)], "<Object>", *rest]
    return node(
        id, f"c10d::{name}", 2, rf_id, inputs=(values, [], ["GenericList[Tensor(float)]", "Object", "Int", "Int"])
    )


def rows(table: Communications) -> list[tuple[Any, ...]]:
    """(type, in, out, group, src, dst, work) of each row, in words."""
    named = [Collective(c).name if c else Kind(k).name for k, c in zip(table.kind, table.collective, strict=True)]
    groups = [table.groups[g][0] if g >= 0 else None for g in table.group]
    numbers = [getattr(table, name).tolist() for name in ("in_bytes", "out_bytes", "src", "dst", "work")]
    into, out, src, dst, work = numbers
    return list(zip(named, into, out, groups, src, dst, work, strict=True))


def test_names() -> None:
    assert type_of("c10d::_allgather_base_") == (Kind.COLL, Collective.ALL_GATHER)
    assert type_of("nccl:send 0->1") == (Kind.SEND, Collective.NONE)
    assert type_of("nccl:all_reduce_barrier") == (Kind.COLL, Collective.BARRIER)
    assert type_of("all_to_allv") == (Kind.COLL, Collective.ALL_TO_ALL)
    assert type_of("reduce") == (Kind.COLL, Collective.REDUCE)
    assert type_of("_reduce_scatter_base") == (Kind.COLL, Collective.REDUCE_SCATTER)
    for name in ("wait", "init", "nccl:coalesced", "aten::scatter", "_c10d_functional::wait_tensor", ""):
        assert type_of(name) is None


def test_a_message_in_a_group_has_global_peers() -> None:
    host = read_host_json(
        host_json(init(3), record(5, 4, 11, "send", 64, group="5", rank=1), c10d(4, "send", 10, 1, 9))
    )
    table = communications(host, None, rank=1)
    assert rows(table) == [("SEND", 256, 256, "5", 1, 3, -1)]
    assert (table.tag.tolist(), table.sequence.tolist(), table.host.tolist()) == ([9], [3], [1])
    assert table.dtypes[table.dtype[0]] == "float32"


def fused() -> tuple[dict[str, Any], dict[str, Any]]:
    """A send and a receive in one kernel, which says nothing of either."""
    host = host_json(
        init(3),
        record(5, 4, 11, "send", 64, rank=1), c10d(4, "send", 10, 1, 0),
        record(7, 6, 13, "recv", 32, rank=3), c10d(6, "recv_", 12, 3, 0, size=32),
        node(8, "nccl:coalesced", 2, 14),
    )  # fmt: skip
    comm = {"dtype": "Float", "Process Group Name": "0", "Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]"}
    one = {"Collective name": "send", "In msg nelems": 64, "Out msg nelems": 64, "Rank": 1, "Dst Rank": 1}
    two = {"Collective name": "recv", "In msg nelems": 32, "Out msg nelems": 32, "Rank": 3, "Src Rank": 3}
    first, second = op("record_param_comms", 1, 3, 11), op("record_param_comms", 11, 3, 13)
    first["args"] |= comm | one
    second["args"] |= comm | two
    device = device_json(
        op("c10d::send", 0, 5, 10), first, op("c10d::recv_", 10, 5, 12), second,
        op("nccl:coalesced", 20, 9, 14, cat="user_annotation"), launch(22, 77),
        event("kernel", "ncclDevKernel_SendRecv", 40, 9, 7, correlation=77, stream=7),
        distributedInfo={"rank": 0},
    )  # fmt: skip
    return host, device


def test_a_fused_send_and_receive_are_two() -> None:
    host, device = fused()
    expected = [("SEND", 256, 256, "0", 0, 1, 6), ("RECV", 128, 128, "0", 3, 0, 6)]
    assert rows(communications(read_host_json(host), read_device_json(device))) == expected
    assert rows(communications(None, read_device_json(device))) == expected


def test_a_coalesced_call_is_one_for_each_tensor() -> None:
    values = [[tensor(64), tensor(16)], [3, False], ["0", ""], 0, "allreduce_coalesced", [], [], 0, 1, 4]
    types = ["GenericList[Tensor(float),Tensor(float)]", "Tuple[Int,Bool]", "Tuple[String,String]", "Int", "String"]
    found = node(5, "record_param_comms", 4, 11, inputs=(values, [], types), outputs=([values[0]], [], []))
    table = communications(read_host_json(host_json(init(3), found)), None, rank=0)
    assert rows(table) == [("ALL_REDUCE", 256, 256, "0", -1, -1, -1), ("ALL_REDUCE", 64, 64, "0", -1, -1, -1)]


def test_a_barrier_is_one_whatever_it_is_made_of() -> None:
    inner = [c10d(6, "allreduce_", 12), record(7, 6, 13, "allreduce", 1)]
    values = [[3, False], ["0", ""], 0, "barrier", [], [], 0, 1, 4]
    types = ["Tuple[Int,Bool]", "Tuple[String,String]", "Int", "String", *["Int"] * 5]
    outer = node(5, "record_param_comms", 4, 11, inputs=(values, [], types))
    inner[0]["ctrl_deps"] = 5
    found = host_json(init(3), *inner[::-1], outer, c10d(4, "barrier", 10))
    table = communications(read_host_json(found), None, rank=0)
    assert rows(table) == [("BARRIER", 0, 0, "0", -1, -1, -1)]
    assert table.dtype.tolist() == [-1]


def test_gloo_finds_its_group() -> None:
    """In a functional collective, else in the Flight Recorder, else unknown where the rank is in two."""
    functional = node(4, "_c10d_functional::all_reduce", 2, 10, inputs=([tensor(64), "sum", "5"], [], []))
    gloo = node(6, "gloo:all_reduce", 2, 12, inputs=([tensor(64)], [[64]], ["Tensor(float)"]))
    host = read_host_json(host_json(init(3), functional, c10d(5, "allreduce_", 11), gloo, c10d(7, "allreduce_", 13)))
    assert rows(communications(host, None, rank=1)) == [
        ("ALL_REDUCE", 256, 256, "5", -1, -1, -1),
        ("ALL_REDUCE", 256, 256, None, -1, -1, -1),
    ]
    flight = [{"profiling_name": "gloo:all_reduce", "process_group": [g, ""], "is_p2p": False, "time_created_ns": t}
              for t, g in ((2000, "0"), (1000, "5"))]  # fmt: skip
    assert [row[3] for row in rows(communications(host, None, rank=1, flight=flight))] == ["5", "0"]
    work = op("gloo:all_reduce", 30, 5, 12, tid=9, cat="user_annotation")
    device = read_device_json(device_json(work, op("c10d::allreduce_", 1, 2, 11), op("c10d::allreduce_", 50, 2, 13)))
    assert [row[-1] for row in rows(communications(host, device, rank=1))] == [0, -1]


def overlapping(name: str) -> dict[str, Any]:
    """Two calls, the first of which gloo ends between them on another thread: the observer, whose stack has lost the
    wrong entry, writes that the second was made by the first."""
    works = [node(i, f"gloo:{name}", c, rf, inputs=([tensor(n)], [[n]], ["Tensor(float)"]))
             for i, c, rf, n in ((5, 4, 11, 96), (7, 6, 13, 2))]  # fmt: skip
    calls = [c10d(4, f"{name}_", 10, 0, size=96), c10d(6, f"{name}_", 12, 0, size=2)]
    calls[1]["ctrl_deps"] = 4
    return host_json(init(3), calls[0], works[0], calls[1], works[1])


@pytest.mark.parametrize(("name", "bytes_of"), [("broadcast", (384, 8)), ("allreduce", (384, 8)), ("barrier", (0, 0))])
def test_calls_that_overlap_stay_two(name: str, bytes_of: tuple[int, int]) -> None:
    """DDP broadcasts its float buffers and then, while those are under way, its integer ones."""
    host = read_host_json(overlapping(name))
    device = read_device_json(device_json(
        op(f"c10d::{name}_", 10, 5, 10), op(f"gloo:{name}", 12, 9, 11, tid=8, cat="user_annotation"),
        op(f"c10d::{name}_", 16, 5, 12), op(f"gloo:{name}", 18, 9, 13, tid=9, cat="user_annotation"),
    ))  # fmt: skip
    for files in ((host, device), (host, None)):
        table = communications(*files, rank=0)
        assert list(zip(table.in_bytes.tolist(), table.out_bytes.tolist(), strict=True)) == [(n, n) for n in bytes_of]
        assert table.work.tolist() == ([1, 3] if files[1] else [-1, -1])


def test_a_record_belongs_to_the_operator_around_it_in_time() -> None:
    """Whatever the observer, led astray by gloo, says was its caller."""
    wrong = record(5, 4, 11, "allreduce", 64)
    wrong["ctrl_deps"] = 2
    host = read_host_json(host_json(init(3), wrong, c10d(4, "allreduce_", 10)))
    device = read_device_json(device_json(op("c10d::allreduce_", 10, 5, 10), op("record_param_comms", 11, 3, 11)))
    assert rows(communications(host, device, rank=0)) == [("ALL_REDUCE", 256, 256, "0", -1, -1, -1)]


def test_a_kernel_without_a_host_speaks_for_itself() -> None:
    said = {"Collective name": "_allgather_base", "In msg nelems": 8, "Out msg nelems": 16, "dtype": "BFloat16",
            "Group size": 2, "Process Group Name": "1", "Process Group Ranks": "[0, 1]"}  # fmt: skip
    device = read_device_json(device_json(kernel("ncclDevKernel_AllGather", 1, 2, 3, 4, **said)))
    assert rows(communications(None, device)) == [("ALL_GATHER", 16, 32, "1", -1, -1, 0)]
    cut = said | {"Process Group Ranks": "[0, 1, ...]"}
    device = read_device_json(device_json(kernel("ncclDevKernel_AllGather", 1, 2, 3, 4, **cut)))
    assert communications(None, device).groups == (("1", None),)
    silent = read_device_json(device_json(kernel("ncclDevKernel_AllGather", 1, 2, 3, 4)))
    assert len(communications(None, silent)) == 0


ODD = st.sampled_from(["null", "-1", "1e99", "9223372036854775808", "true", '""', '"x"', '"[1, 2, ...]"', "[]", "[[]]",
                       "[null]", "{}", '[[1, 2, 3, 4, 5, "cpu"]]'])  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, item in inner for place in places(item, (*at, key)))]


@given(st.data())
def test_what_makes_no_sense_is_left_out(data: st.DataObject) -> None:
    host, device = fused()
    for value, listed in ((host, "nodes"), (device, "traceEvents")):
        for _ in range(data.draw(st.integers(0, 3))):
            *path, last = (listed, *data.draw(st.sampled_from(places(value[listed])[1:])))
            inner = value
            for key in path:
                inner = inner[key]
            inner[last] = json.loads(data.draw(ODD))
    try:
        both = read_host_json(host), read_device_json(device)
    except FormatError:
        return
    flight = [{"time_created_ns": 5, "process_group": 3}]
    for pair in (both, (both[0], None), (None, both[1])):
        table = communications(*pair, flight=flight)
        assert len(table.in_bytes) == len(table) <= 4


# -- real captures -----------------------------------------------------------------------------------------------------

WIDTH = {"float": 4, "long int": 8, "long": 8, "unsigned char": 1, "c10::BFloat16": 2, "int": 4}


def sized(shapes: Any, kinds: str) -> Iterator[int]:
    """Bytes of the tensors of one argument, from shapes and the names of types."""
    names = re.findall(r"Tensor\(([^)]*)\)", kinds)
    flat: list[list[int]] = []

    def walk(shape: Any) -> None:
        if shape and isinstance(shape[0], list):
            for inner in shape:
                walk(inner)
        else:
            flat.append(shape)

    walk(shapes)
    return (prod(shape) * WIDTH[name] for shape, name in zip(flat, names, strict=False))


def by_arithmetic(path: Path) -> list[tuple[str, int, int]]:
    """(operator, input bytes, output bytes) of each `c10d::` call, from the shapes of a host trace."""
    with gzip.open(path) as file:
        nodes = json.load(file)["nodes"]
    found = []
    for one in sorted(nodes, key=lambda n: n["id"]):
        name = one["name"]
        if not name.startswith("c10d::"):
            continue
        shapes, kinds = one["inputs"]["shapes"], one["inputs"]["types"]
        tensors = kinds[: kinds.index("Object")]
        sides = [list(sized(shape, kind)) for shape, kind in zip(shapes, tensors, strict=False)]
        if name == "c10d::barrier":
            found.append((name, 0, 0))
        elif "coalesced" in name:
            found += [(name, i, o) for i, o in zip(sides[-1], sides[0], strict=True)]
        else:
            found.append((name, sum(sides[-1]), sum(sides[0])))
    return found


TYPE = {
    "allreduce_": "ALL_REDUCE", "allreduce_coalesced_": "ALL_REDUCE", "broadcast_": "BROADCAST", "reduce_": "REDUCE",
    "_allgather_base_": "ALL_GATHER", "allgather_": "ALL_GATHER", "allgather_into_tensor_coalesced_": "ALL_GATHER",
    "_reduce_scatter_base_": "REDUCE_SCATTER", "reduce_scatter_tensor_coalesced_": "REDUCE_SCATTER",
    "alltoall_base_": "ALL_TO_ALL", "alltoall_": "ALL_TO_ALL", "gather_": "GATHER", "scatter_": "SCATTER",
    "barrier": "BARRIER", "send": "SEND", "recv_": "RECV",
}  # fmt: skip

NCCL = "oracle/chakra_official/h200_nccl"
RUNS = [
    *(f"{NCCL}/{run}/host.{{}}.json.gz" for run in ("coll", "fsdp")),
    "traces/h200/ddp_rank{}_et.json.gz",
    *(f"traces/torch_cpu/{run}.rank{{}}.et.json.gz"
      for run in ("colls_2p", "colls_4p", "ddp_2p", "ddp_4p", "dp_tp_4p", "fsdp2_2p", "fsdp2_4p", "moe_2p", "tp_2p",
                  "tp_sp_2p", "pp_gpipe_2p", "pp_1f1b_2p", "pp_1f1b_4p")),
]  # fmt: skip


def tables(shared: Path, pattern: str) -> list[tuple[Path, Communications]]:
    found = []
    for rank in range(4):
        path = shared / pattern.format(rank)
        if path.exists():
            device = re.sub(r"host(\.\d)", r"device\1", str(path)).replace("et.json", "kineto.json")
            recorder = Path(str(path).replace(".et.", ".fr."))
            flight = json.loads(gzip.decompress(recorder.read_bytes()))["entries"] if ".et." in path.name else ()
            found.append((path, communications(load_host(path), load_device(Path(device)), rank=rank, flight=flight)))
    return found


@pytest.mark.parametrize("pattern", RUNS)
def test_real_captures_agree_with_arithmetic_and_with_each_other(shared: Path, pattern: str) -> None:
    found = tables(shared, pattern)
    assert len(found) > 1
    sent: dict[tuple[int, int, int], list[int]] = {}
    received: dict[tuple[int, int, int], list[int]] = {}
    per_group: dict[tuple[int, ...], list[list[int]]] = {}
    for rank, (path, table) in enumerate(found):
        listed = [(TYPE[name.removeprefix("c10d::")], into, out) for name, into, out in by_arithmetic(path)]
        assert [row[:3] for row in rows(table)] == listed
        assert (table.work >= 0).all()
        for i in range(len(table)):
            if table.kind[i] == Kind.COLL:
                members = table.groups[table.group[i]][1]
                assert table.group[i] >= 0 and members is not None and rank in members
                per_group.setdefault(members, [[] for _ in members])[members.index(rank)].append(i)
            else:
                ends = int(table.src[i]), int(table.dst[i]), int(table.tag[i])
                assert rank == ends[0 if table.kind[i] == Kind.SEND else 1]
                side = sent if table.kind[i] == Kind.SEND else received
                side.setdefault(ends, []).append(int(table.in_bytes[i]))
    assert sent == received
    for members, of_rank in per_group.items():
        assert len({len(listed) for listed in of_rank}) == 1
        for same in zip(*of_rank, strict=True):
            check_together(members, [(found[rank][1], i) for rank, i in zip(members, same, strict=True)])


def check_together(members: tuple[int, ...], same: list[tuple[Communications, int]]) -> None:
    """One collective as its members see it."""
    table, i = same[0]
    size = len(members)
    kinds = {Collective(t.collective[j]) for t, j in same}
    assert len(kinds) == 1
    (kind,) = kinds
    into, out = [int(t.in_bytes[j]) for t, j in same], [int(t.out_bytes[j]) for t, j in same]
    assert len({int(t.root[j]) for t, j in same}) == 1
    if kind in (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE, Collective.BARRIER):
        assert into == out == [into[0]] * size
    elif kind == Collective.ALL_GATHER:
        assert out == [sum(into)] * size
    elif kind == Collective.REDUCE_SCATTER:
        assert into == [sum(out)] * size
    elif kind == Collective.ALL_TO_ALL:
        ins = [t.in_split[t.in_split_start[j] : t.in_split_start[j + 1]].tolist() for t, j in same]
        outs = [t.out_split[t.out_split_start[j] : t.out_split_start[j + 1]].tolist() for t, j in same]
        assert [list(column) for column in zip(*ins, strict=True)] == outs
        assert [sum(split) for split in ins] == into
        assert [sum(split) for split in outs] == out
    else:
        root = members.index(int(table.root[i]))
        at_root, at_all = (out, into) if kind == Collective.GATHER else (into, out)
        assert at_root == [sum(at_all) if m == root else 0 for m in range(size)]
    assert all(t.groups[t.group[j]][1] == members for t, j in same)


@pytest.mark.parametrize("rank", range(4))
def test_nccl_without_the_host_trace_is_the_same(shared: Path, rank: int) -> None:
    for run in ("coll", "fsdp"):
        device = load_device(shared / NCCL / run / f"device.{rank}.json.gz")
        host = load_host(shared / NCCL / run / f"host.{rank}.json.gz")
        both = communications(host, device)
        assert rows(communications(None, device)) == rows(both)
        assert [row[:6] for row in rows(communications(host, None, rank=rank))] == [row[:6] for row in rows(both)]


def test_every_nccl_kernel_has_its_communication(shared: Path) -> None:
    for run in ("coll", "fsdp"):
        device = load_device(shared / NCCL / run / "device.0.json.gz")
        kernels = (device.name_has("nccl") & device.is_category("kernel")).nonzero()[0]
        assert set(communications(None, device).work.tolist()) == set(kernels.tolist())


def test_old_records(shared: Path) -> None:
    """1.0.2 names a group by a number; 1.1.0 of two ranks."""
    old = communications(
        load_host(shared / "oracle/chakra_official/official_tests/1.0.2-chakra.0.0.4.host.json.gz"), None, rank=0
    )
    assert {row[:3] for row in rows(old)} == {("ALL_GATHER", 4, 8)}
    assert {old.groups[g][1] for g in old.group} == {(0, 1)}
    newer = communications(load_host(shared / "traces/public/resnet_2gpu_nccl.et.json.gz"), None, rank=1)
    assert {row[0] for row in rows(newer)} == {"BROADCAST", "ALL_REDUCE"}
    assert UNKNOWN not in newer.in_bytes


def test_old_device_traces(shared: Path) -> None:
    """Records that say nothing: the operators' shapes and the annotations' do. Groups are not in them."""
    table = communications(None, load_device(shared / "oracle/hta/inputs/dlrm8.rank0.json.gz"))
    assert {row[0] for row in rows(table)} == {"ALL_TO_ALL", "ALL_REDUCE"}
    assert (table.work >= 0).all() and (table.in_bytes > 0).all() and (table.group == -1).all()
