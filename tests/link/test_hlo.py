"""Collectives of compiled programs, on protobuf bytes written by hand."""

from __future__ import annotations

import pytest

from etude.base.errors import FormatError
from etude.capture.link.hlo import Module, read_module
from etude.capture.link.recording import PERMUTE
from etude.kernels.varint import encode_varint
from etude.model.schema import UNKNOWN

F32, BF16, TUPLE = 11, 16, 13


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return encode_varint(number << 3) + encode_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return encode_varint(number << 3 | 2) + encode_varint(len(data)) + data


def packed(*numbers: int) -> bytes:
    return b"".join(encode_varint(n) for n in numbers)


def shape(element: int, *dims: int) -> bytes:
    return field(2, element) + field(3, packed(*dims))


def pair(*parts: bytes) -> bytes:
    return field(2, TUPLE) + b"".join(field(4, part) for part in parts)


def program(*instructions: bytes) -> Module:
    computation = field(1, "main") + b"".join(field(2, one) for one in instructions)
    return read_module(field(1, field(1, "jit_step") + field(3, computation)))


def instruction(name: str, opcode: str, of: bytes, *more: bytes) -> bytes:
    return field(1, name) + field(2, opcode) + field(3, of) + b"".join(more)


def groups(*members: tuple[int, ...]) -> bytes:
    return b"".join(field(49, field(1, packed(*one))) for one in members)


def test_an_all_reduce_is_known_by_its_opcode_whatever_its_name() -> None:
    module = program(
        instruction("psum.35", "all-reduce", shape(F32, 256, 512), groups((0, 1), (2, 3))),
        instruction("all-reduce.of.nothing", "add", shape(F32, 8)),
    )
    assert list(module.collectives) == ["psum.35"]
    talk = module.collectives["psum.35"].talk(rank=2, world=4)
    assert (talk.collective, talk.dtype, talk.members) == ("all_reduce", "Float", (2, 3))
    assert talk.in_bytes == talk.out_bytes == 524_288  # 256 * 512 * 4


def test_an_all_gather_takes_in_a_share_and_a_reduce_scatter_gives_one_out() -> None:
    module = program(
        instruction("g", "all-gather-start", pair(shape(BF16, 32), shape(BF16, 128)), groups((0, 1, 2, 3))),
        instruction("s", "reduce-scatter", shape(BF16, 32), groups((0, 1, 2, 3))),
    )
    gather, scatter = (module.collectives[name].talk(0, 4) for name in ("g", "s"))
    assert (gather.in_bytes, gather.out_bytes) == (64, 256)
    assert (scatter.in_bytes, scatter.out_bytes) == (256, 64)


def test_groups_may_be_an_array_of_ids_reshaped_and_transposed() -> None:
    # [2,2]<=[2,2]T(1,0): ids 0 1 / 2 3 read by columns
    iota = field(1, 2) + field(2, 2) + field(3, packed(2, 2)) + field(4, packed(1, 0))
    module = program(instruction("a", "all-to-all", shape(F32, 4), field(87, field(2, iota))))
    assert [module.collectives["a"].talk(rank, 4).members for rank in range(4)] == [(0, 2), (1, 3), (0, 2), (1, 3)]


def test_groups_as_newer_programs_write_them() -> None:
    """As JAX 0.10 wrote them for a mesh of 2 x 2: the same array in a field of its own, and axes of a mesh."""
    iota = field(1, 2) + field(2, 2) + field(3, packed(4)) + field(4, packed(0))
    axes = [field(1, field(1, f"axis_{i}") + field(2, size)) for i, size in enumerate((2, 1, 2))]
    module = program(
        instruction("a", "all-gather", shape(F32, 128, 256), field(92, iota)),
        instruction("b", "all-reduce", shape(F32, 4), field(93, field(1, b"".join(axes)) + field(2, b""))),
    )
    gather, reduce = (module.collectives[name].talk(3, 4) for name in "ab")
    assert (gather.members, gather.in_bytes) == ((2, 3), 65_536)  # half of 128 * 256 * 4
    assert reduce.members == (1, 3)  # along the first axis


def mesh(sizes: tuple[int, ...], *refs: tuple[int, ...], ids: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Members of the group of each device; a reference is an axis, or an axis, the size before and the size."""
    body = b"".join(field(1, field(2, size)) for size in sizes) + (field(2, packed(*ids)) if ids else b"")
    told = b"".join(
        field(2, field(1, axis) + (field(2, field(1, part[0]) + field(2, part[1])) if part else b""))
        for axis, *part in refs
    )
    module = program(instruction("a", "all-reduce", shape(F32, 4), field(93, field(1, body) + told)))
    return [module.collectives["a"].talk(rank, 8).members for rank in range(8)]


def test_groups_along_parts_of_an_axis_and_of_a_mesh_in_another_order() -> None:
    assert mesh((8,), (0, 2, 2))[:3] == [(0, 2), (1, 3), (0, 2)]  # the middle digit of 2 x 2 x 2
    assert mesh((8,), (0, 1, 2), (0, 4, 2))[0] == (0, 1, 4, 5)  # the first and the last
    assert mesh((2, 4), (1,), ids=(7, 6, 5, 4, 3, 2, 1, 0))[7] == (7, 6, 5, 4)
    assert mesh((2, 2, 2), (0,), (2,))[0] == (0, 1, 4, 5)


def test_groups_that_cannot_be_read_are_unknown_and_not_all_devices() -> None:
    iota = field(1, 2) + field(2, 2) + field(3, packed(3))
    module = program(instruction("a", "all-reduce", shape(F32, 4), field(92, iota)))
    assert module.collectives["a"].talk(0, 4).members == ()
    for sizes, ref in (((8,), (1,)), ((8,), (0, 3, 2)), ((8,), (0, 4, 4)), ((), (0,))):
        assert mesh(sizes, ref) == [()] * 8
    assert mesh((8,), (0,), ids=(0, 1)) == [()] * 8


def test_no_groups_are_all_devices() -> None:
    module = program(instruction("a", "all-reduce", shape(F32, 4)))
    assert module.collectives["a"].talk(1, 4).members == (0, 1, 2, 3)


def test_a_permutation_sends_to_one_and_receives_from_another() -> None:
    pairs = b"".join(field(52, field(1, s) + field(2, t)) for s, t in ((0, 1), (1, 2), (2, 0)))
    module = program(instruction("p", "collective-permute", shape(F32, 2, 3), pairs))
    talk = module.collectives["p"].talk(1, 3)
    assert (talk.collective, talk.to, talk.source, talk.in_bytes) == (PERMUTE, 2, 0, 24)


def test_an_unknown_element_type_has_no_size() -> None:
    module = program(instruction("a", "all-reduce", shape(99, 4), groups((0, 1))))
    assert module.collectives["a"].talk(0, 2).in_bytes == UNKNOWN


def test_a_damaged_program_is_refused() -> None:
    for data in (b"\x0a\x7f\x01", field(1, 7), field(1, field(1, 1 << 40)), field(1, field(3, 5))):
        with pytest.raises(FormatError, match="compiled program"):
            read_module(data)
