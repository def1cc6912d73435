"""The reader of `.et` files: every kind of integer, and bytes that make no sense."""

import numpy as np
import pytest

import chakra_pb as pb
from etude.errors import EtudeError, FormatError
from etude.astra import AstraAbort, read_workload

NODE = pb.SCHEMA.Node


def attribute(name, **value):
    a = pb.SCHEMA.Attribute(name=name)
    for kind, v in value.items():
        if isinstance(v, list):
            getattr(a, kind).values.extend(v)
        else:
            setattr(a, kind, v)
    return a


def node(number, kind=4, deps=(), attrs=()):
    return NODE(id=number, name=f"n{number}", type=kind, data_deps=deps, duration_micros=7, attr=attrs)


@pytest.fixture
def write(tmp_path):
    def put(*nodes, name="w.0.et", cut=0):
        data = pb.write_messages(pb.SCHEMA.GlobalMetadata(version="0.0.4"), nodes)
        (tmp_path / name).write_bytes(data[: len(data) - cut])
        return tmp_path / name

    return put


@pytest.mark.parametrize(
    "kind", ["int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed64"]
)
def test_every_kind_of_integer(write, kind):
    w = read_workload(
        [write(node(3, 7, (), [attribute("comm_size", **{f"{kind}_val": 123456}), attribute("other", int32_val=5)]))]
    )
    assert w.comm_size.tolist() == [123456]
    assert w.source_id.tolist() == [3]


def test_groups_dimensions_and_dependencies(write):
    nodes = [
        node(
            2**40,
            7,
            (),
            [attribute("pg_name", string_val="12"), attribute("involved_dim", bool_list=[True, False, True])],
        ),
        node(5, 7, (2**40,), [attribute("pg_name", string_val="0"), attribute("is_cpu_op", bool_val=True)]),
        node(9, 7, (5, 2**40, 77), [attribute("pg_name", string_val="99")]),
    ]
    w = read_workload([write(*nodes)] * 2, {12: (0, 1)})
    assert w.group.tolist() == [0, -1, -2] * 2
    assert w.involved_dims.tolist() == [5, -1, -1] * 2
    assert w.is_cpu.tolist() == [False, True, False] * 2
    assert w.dep.tolist() == [0, 1, 0, -1, 3, 4, 3, -1]
    assert w.dep_start.tolist() == [0, 0, 1, 4, 4, 5, 8]


def test_files_that_cannot_be_read(write, tmp_path):
    with pytest.raises(AstraAbort, match="No such file"):
        read_workload([tmp_path / "nothing.et"])
    with pytest.raises(FormatError, match="ends inside a message"):
        read_workload([write(node(1), cut=3)])
    with pytest.raises(FormatError, match="two nodes have the same id"):
        read_workload([write(node(1), node(1))])
    (tmp_path / "empty.et").write_bytes(b"")
    with pytest.raises(FormatError, match="empty"):
        read_workload([write(node(1)), tmp_path / "empty.et"])


def test_damaged_bytes_are_refused_or_read_but_never_crash(write, tmp_path):
    random = np.random.default_rng(1)
    nodes = [
        node(i, int(random.integers(0, 9)), range(max(0, i - 3), i), [attribute("comm_size", int64_val=i)])
        for i in range(30)
    ]
    whole = np.frombuffer(write(*nodes).read_bytes(), np.uint8)
    damaged = tmp_path / "damaged.et"
    read = 0
    for _ in range(400):
        data = whole.copy()
        for at in random.integers(0, len(data), int(random.integers(1, 6))):
            data[at] = random.integers(0, 256)
        damaged.write_bytes(data[: int(random.integers(1, len(data) + 1))].tobytes())
        try:
            read_workload([damaged])
            read += 1
        except EtudeError:
            pass
    assert read > 0
