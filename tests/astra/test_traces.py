"""What is read of `.et` files: every kind of integer, and attributes that no column of the model holds."""

import pytest

import chakra_pb as pb
from etude.run.astra.columns import group_number, read_nodes
from etude.store import chakra

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
def read(tmp_path):
    def columns(*ranks, groups=()):
        for rank, nodes in enumerate(ranks):
            data = pb.write_messages(pb.SCHEMA.GlobalMetadata(version="0.0.4"), nodes)
            (tmp_path / f"w.{rank}.et").write_bytes(data)
        return read_nodes(chakra.read_job(tmp_path), dict(groups)).columns

    return columns


@pytest.mark.parametrize(
    "kind", ["int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed64"]
)
def test_every_kind_of_integer(read, kind):
    attrs = [attribute("comm_size", **{f"{kind}_val": 123456}), attribute("other", int32_val=5)]
    found = read([node(3, 7, (), attrs)])
    assert found.comm_bytes.tolist() == [123456]
    assert found.source_id.tolist() == [3]


def test_groups_dimensions_and_dependencies(read):
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
    found = read(nodes, nodes, groups={12: (0, 1)}.items())
    assert found.group.tolist() == [0, -1, -2] * 2
    assert found.involved_dims.tolist() == [5, -1, -1] * 2
    assert found.cpu.tolist() == [-1, 1, -1] * 2
    assert found.dep.tolist() == [0, 1, 0, -1, 3, 4, 3, -1]
    assert found.dep_start.tolist() == [0, 0, 1, 4, 4, 5, 8]


def test_what_columns_of_the_model_do_not_take(read):
    odd = [
        attribute("pg_name", int32_val=12),
        attribute("is_cpu_op", int32_val=2),
        attribute("comm_type", int64_val=99),
    ]
    found = read([node(1, 7, (), odd), node(2, 7, (), [attribute("involved_dim", int32_val=3)])], groups=[(12, (0,))])
    assert found.group.tolist() == [0, -1]
    assert found.cpu.tolist() == [1, -1]
    assert found.involved_dims.tolist() == [-1, -1]


def test_peers_and_tags(read):
    tag = attribute("comm_tag", int32_val=500_000_007)
    send = node(1, 5, (), [attribute("comm_dst", int32_val=1), tag])
    back = node(1, 6, (), [attribute("comm_src", int32_val=0), tag])
    found = read([send, node(2, 5, (), [attribute("comm_dst", int32_val=-3)])], [back])
    assert (found.src.tolist(), found.dst.tolist()) == ([-1, -1, 0], [1, -3, -1])
    assert found.tag.tolist() == [7, -1, 7]


@pytest.mark.parametrize(("name", "number"), [("", 0), ("0", 0), ("12", 12), ("12abc", 12), ("007", 7)])
def test_groups_are_known_by_the_digits_that_their_name_begins_with(name, number):
    assert group_number(name) == number


def test_a_name_without_digits_is_no_group():
    assert group_number("dp") > 1_000_000
