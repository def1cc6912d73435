"""Memory of programs, worked out by hand; what does not fit is refused before anything starts."""

import pytest

from etude.run.replay.buffers import Buffers
from etude.run.replay.builder import ProgramBuilder
from etude.run.replay.needs import OutOfMemoryError, check_memory, needed_bytes
from etude.run.replay.program import CommKind, StandInKind, StorageOrigin
from etude.run.replay.stand_in_sizes import multiplied, product_dims


def three_reductions(waits: bool):
    """All-reduces of 8 MB; with `waits` each is over before the next begins."""
    b = ProgramBuilder(rank=0, world_size=2)
    group = b.group([0, 1], "all")
    rows = []
    for _ in range(3):
        b.comm(
            CommKind.ALL_REDUCE, in_bytes=8_000_000, out_bytes=8_000_000, dtype="float32", group=group, is_async=True
        )
        rows.append(len(rows))
        if waits:
            b.wait(rows[-1])
    if not waits:
        for row in rows:
            b.wait(row)
    return b.build()


def test_calls_share_memory_where_one_is_over_before_the_other_begins():
    def float32(row: int) -> str:
        return "float32"

    assert Buffers(three_reductions(waits=True), float32).size_bytes == 8_000_000
    assert Buffers(three_reductions(waits=False), float32).size_bytes == 24_000_000


def test_a_program_needs_its_inputs_its_buffers_and_the_largest_of_its_stand_ins():
    b = ProgramBuilder(rank=0, world_size=2)
    b.storage(1000, origin=StorageOrigin.OUTSIDE)
    b.storage(5000)  # made on the way
    b.stand_in(StandInKind.GEMM, "small", flops=2 * 8 * 4 * 2, dtype="float32", dims=[8, 4, 2, 1])
    # The product reads 16 numbers and writes 32; the stream reads 500 and writes 500.
    b.stand_in(StandInKind.ELEMENTWISE, "large", size_bytes=4000, dtype="float32")
    b.comm(CommKind.ALL_GATHER, in_bytes=100, out_bytes=200, dtype="uint8", group=b.group([0, 1], "all"))
    program = b.build()
    assert needed_bytes(program) == 1000 + 4 * (500 + 500) + 300
    assert needed_bytes(program, compute=False) == 300
    assert needed_bytes(program, communication=False) == 5000


def test_what_does_not_fit_is_refused_with_a_way_out():
    programs = [three_reductions(waits=False)] * 4
    check_memory(programs, free=96_000_000)
    with pytest.raises(OutOfMemoryError, match=r"4 processes need at least 0\.1 GB") as told:
        check_memory(programs, free=50_000_000)
    assert told.value.exit_code == 2 and told.value.hint == "--ranks with 2 of them"
    with pytest.raises(OutOfMemoryError, match="a machine with more memory"):
        check_memory(programs, free=1_000_000)


def test_work_of_an_unknown_kind_is_a_product_of_its_flops_and_bytes_or_a_stream():
    assert not multiplied(StandInKind.ELEMENTWISE, 1000, 4000)  # one FLOP for each number of four bytes
    assert multiplied(StandInKind.ELEMENTWISE, 2 * 512**3, 3 * 512 * 512 * 2)
    m, n, k, batch = product_dims(StandInKind.ELEMENTWISE, 2 * 512**3, 3 * 512 * 512 * 2, 2, ())
    assert (m, n, batch) == (512, 512, 1) and k == 512
    m, n, k, batch = product_dims(StandInKind.ELEMENTWISE, 2 * 2048 * 2048 * 64, 2 * (2 * 2048 * 64 + 2048**2), 2, ())
    assert 2 * m * n * k == pytest.approx(2 * 2048 * 2048 * 64, rel=0.02)
    assert (m * k + k * n + m * n) == pytest.approx(2 * 2048 * 64 + 2048**2, rel=0.03)
