"""The caching allocator: cases counted by hand, and random ones against a plain one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from etude.base.errors import TraceError, UsageError
from etude.cost.allocator import (
    AllocatorAction,
    AllocatorEvents,
    AllocatorSettings,
    cublas_workspace_bytes,
    nccl_buffer_bytes,
    simulate_allocator,
)
from etude.cost.allocator.blocks import SPACE
from naive_allocator import NaiveAllocator

ALLOC, FREE, REQUESTED, COMPLETED, EMPTY_CACHE = list(AllocatorAction)[1:]
MIB = 1024 * 1024


def events(*rows: tuple[int, ...]) -> AllocatorEvents:
    """Rows of (action, block, bytes, stream, class); what is left out is 0."""
    full = [row + (0,) * (5 - len(row)) for row in rows]
    return AllocatorEvents.of(*zip(*full, strict=True))


def reserved_mib(*rows: tuple[int, ...], **given: object) -> list[float]:
    found = simulate_allocator(events(*rows), AllocatorSettings(**given))  # type: ignore[arg-type]
    return (found.reserved_bytes / MIB).tolist()


def test_small_and_middling_blocks_share_segments():
    rows = (ALLOC, 0, 3 * MIB), (ALLOC, 1, 4 * MIB), (ALLOC, 2, 100), (ALLOC, 3, MIB), (ALLOC, 4, MIB)
    assert reserved_mib(*rows) == [20, 20, 22, 22, 24]  # 100 bytes and 1 MiB leave less than 1 MiB of the 2 MiB
    assert simulate_allocator(events(*rows)).allocated_bytes.tolist()[2] == 7 * MIB + 512


def test_the_last_512_bytes_of_a_small_segment_are_used():
    assert reserved_mib((ALLOC, 0, MIB), (ALLOC, 1, MIB - 512), (ALLOC, 2, 1), (ALLOC, 3, 1)) == [2, 2, 2, 4]


def test_large_blocks_have_segments_of_their_own():
    assert reserved_mib((ALLOC, 0, 10 * MIB)) == [10]
    assert reserved_mib((ALLOC, 0, 10 * MIB - 512)) == [20]
    assert reserved_mib((ALLOC, 0, 10 * MIB - 511)) == [10]  # is rounded up to 10 MiB
    assert reserved_mib((ALLOC, 0, 11 * MIB)) == [12]


def test_a_block_keeps_a_rest_of_one_mib():
    found = simulate_allocator(events((ALLOC, 0, 15 * MIB), (ALLOC, 1, 15 * MIB - 512)))
    assert found.taken_bytes.tolist() == [16 * MIB, 15 * MIB - 512]  # a rest of 1 MiB and 512 bytes is split off
    assert found.requested_bytes.max() == 30 * MIB - 512


def test_a_split_block_leaves_a_hole_that_fits_no_other():
    rows = (ALLOC, 0, 30 * MIB), (FREE, 0), (ALLOC, 1, 5 * MIB), (ALLOC, 2, 26 * MIB), (FREE, 1), (ALLOC, 3, 30 * MIB)
    assert reserved_mib(*rows) == [30, 30, 30, 56, 56, 56]  # 25 and 5 MiB are one block again


def test_the_smallest_block_that_fits_is_taken():
    rows = (ALLOC, 0, 40 * MIB), (ALLOC, 1, 30 * MIB), (FREE, 0), (FREE, 1), (ALLOC, 2, 28 * MIB), (ALLOC, 3, 38 * MIB)
    assert reserved_mib(*rows)[-1] == 70


def test_of_two_that_fit_alike_the_one_in_the_lower_segment_is_taken():
    """Segments of 44 and 24 MiB; of the larger one 20 MiB are used, so that both have 24 MiB free. The later segment is
    the lower one, and what was taken of is not returned."""
    large, small = (ALLOC, 0, 44 * MIB), (ALLOC, 1, 24 * MIB)
    then = (FREE, 0), (ALLOC, 2, 20 * MIB), (FREE, 1), (ALLOC, 3, 3 * MIB), (EMPTY_CACHE, 0)
    assert reserved_mib(large, small, *then)[-1] == 68
    assert reserved_mib(small, large, *then)[-1] == 44
    known = simulate_allocator(events(large, small, *then), segment_addresses=[64 * MIB, 512 * MIB])
    assert known.reserved_bytes[-1] == 44 * MIB and known.address[1] == 512 * MIB


def test_streams_share_nothing():
    rows = (ALLOC, 0, 30 * MIB, 7), (FREE, 0), (ALLOC, 1, 30 * MIB, 9), (ALLOC, 2, 30 * MIB, 7)
    assert reserved_mib(*rows) == [30, 30, 60, 60]


def test_a_block_that_another_stream_uses_waits():
    rows = (ALLOC, 0, 30 * MIB), (REQUESTED, 0), (ALLOC, 1, 30 * MIB), (COMPLETED, 0), (ALLOC, 2, 30 * MIB)
    found = simulate_allocator(events(*rows))
    assert (found.reserved_bytes // MIB).tolist() == [30, 30, 60, 60, 60]
    assert (found.allocated_bytes // MIB).tolist() == [30, 0, 30, 30, 60]
    assert (found.requested_bytes // MIB).tolist() == [30, 30, 60, 30, 60]


def test_a_full_device_gets_cached_segments_back():
    rows = (ALLOC, 0, 30 * MIB), (ALLOC, 1, 100), (FREE, 0), (ALLOC, 2, 38 * MIB), (ALLOC, 3, 100), (ALLOC, 4, 3 * MIB)
    found = simulate_allocator(events(*rows), AllocatorSettings(capacity_bytes=40 * MIB))
    assert (found.reserved_bytes // MIB).tolist() == [30, 32, 32, 40, 40]
    assert found.failed_event == 5 and found.retries == 2


def test_a_full_device_waits_for_other_streams():
    rows = (ALLOC, 0, 30 * MIB), (REQUESTED, 0), (ALLOC, 1, 40 * MIB), (COMPLETED, 0), (FREE, 1), (ALLOC, 0, 40 * MIB)
    found = simulate_allocator(events(*rows), AllocatorSettings(capacity_bytes=40 * MIB))
    assert found.failed_event is None and found.requested_bytes.tolist()[2] == 40 * MIB


def test_an_emptied_cache():
    assert reserved_mib((ALLOC, 0, 30 * MIB), (ALLOC, 1, 1), (FREE, 0), (EMPTY_CACHE, 0)) == [30, 32, 32, 2]


def test_blocks_beyond_the_limit_are_not_split():
    rows = (ALLOC, 0, 60 * MIB), (FREE, 0), (ALLOC, 1, 5 * MIB), (ALLOC, 2, 45 * MIB), (FREE, 2), (ALLOC, 3, 30 * MIB)
    assert reserved_mib(*rows, max_split_bytes=30 * MIB) == [60, 60, 80, 80, 80, 110]
    assert reserved_mib(*rows) == [60, 60, 60, 60, 60, 60]


def test_as_many_blocks_beyond_the_limit_are_returned_as_make_room():
    """Cached blocks of 40 MiB or so, and what is reserved after one more is asked for."""

    def left_mib(capacity: int, wanted: int, *cached: tuple[int, int]) -> tuple[float, int]:
        rows = [(ALLOC, i, size * MIB, stream) for i, (size, stream) in enumerate(cached)]
        rows += [(FREE, i) for i in range(len(cached))] + [(ALLOC, 9, wanted * MIB, 0)]
        given = AllocatorSettings(capacity_bytes=capacity * MIB, max_split_bytes=30 * MIB)
        found = simulate_allocator(events(*rows), given)
        return found.reserved_bytes[-1] / MIB, found.retries

    assert left_mib(130, 50, (40, 0), (80, 0)) == (40 + 50, 0)  # 80 alone is enough
    assert left_mib(130, 60, (36, 0), (40, 0), (46, 0)) == (36 + 60, 0)  # the largest first: 46, then 40
    assert left_mib(170, 70, (40, 0), (45, 0), (80, 1)) == (80 + 70, 0)  # of its own stream
    assert left_mib(130, 50, (40, 0), (80, 1)) == (50, 1)  # 40 is not enough: all are returned
    assert left_mib(130, 60, (30, 0), (30, 0), (60, 1)) == (60 + 60, 0)
    assert left_mib(130, 60, (20, 0), (40, 0), (60, 1)) == (60, 1)  # 20 is not beyond the limit


def test_an_expandable_segment_grows_instead():
    rows = (ALLOC, 0, 30 * MIB), (FREE, 0), (ALLOC, 1, 5 * MIB), (ALLOC, 2, 26 * MIB), (ALLOC, 3, 10 * MIB)
    assert reserved_mib(*rows, expandable_segments=True) == [40, 40, 40, 40, 60]
    assert reserved_mib(*rows) == [30, 30, 30, 56, 56]


def test_a_full_device_gets_granules_of_an_expandable_segment_back():
    rows = (ALLOC, 0, 50 * MIB), (ALLOC, 1, 5 * MIB), (FREE, 0), (ALLOC, 2, 55 * MIB)
    # 60 mapped, 50 of them free: 40 are returned at the front, and the last 5 serve with three new granules.
    assert reserved_mib(*rows, expandable_segments=True, capacity_bytes=80 * MIB) == [60, 60, 60, 80]


def test_nothing_takes_nothing():
    assert reserved_mib((ALLOC, 0, 0), (FREE, 0), (ALLOC, 0, 1), (FREE, 0)) == [0, 0, 2, 2]
    empty = simulate_allocator(AllocatorEvents.of([], [], []))
    assert (empty.peak_reserved_bytes, empty.peak_allocated_bytes) == (0, 0)


def test_classes_at_the_peak():
    rows = [(ALLOC, 0, 512, 0, 1), (ALLOC, 1, 1000, 0, 2), (FREE, 0), (ALLOC, 2, 2048, 0, 1), (FREE, 1), (ALLOC, 3, 1)]
    found = simulate_allocator(events(*rows))
    assert found.class_bytes.tolist() == [0, 2048, 1024]


@pytest.mark.parametrize(
    "rows, problem",
    [
        ([(ALLOC, 5, 1), (ALLOC, 5, 1)], "event 1: block 5 is allocated twice"),
        ([(ALLOC, 5, 1), (FREE, 4)], "event 1: block 4 is freed and was not allocated"),
        ([(ALLOC, 5, 1), (COMPLETED, 5)], "event 1: block 5 is freed and was not allocated"),
        ([(ALLOC, 5, 1), (FREE, 5), (FREE, 5)], "event 2: block 5 is freed and was not allocated"),
        ([(ALLOC, 5, 1), (REQUESTED, 5), (FREE, 5)], "event 2: block 5 is freed and was not allocated"),
    ],
)
def test_events_that_cannot_be(rows: list[tuple[int, ...]], problem: str):
    with pytest.raises(TraceError) as raised:
        simulate_allocator(events(*rows))
    assert str(raised.value) == problem


@pytest.mark.parametrize(
    "columns, problem",
    [
        (([1], [0, 1], [5]), "2 rows of `block`, 1 of `action`"),
        (([1, 1], [0, 1], [5, -1]), "`size_bytes` is negative in row 1"),
        (([1, 0], [0, 1], [5, 1]), "unknown action 0 in row 1"),
    ],
)
def test_columns_that_cannot_be(columns: tuple[list[int], ...], problem: str):
    with pytest.raises(UsageError) as raised:
        AllocatorEvents.of(*columns)
    assert str(raised.value) == problem


def test_settings_as_pytorch_reads_them():
    found = AllocatorSettings.parse("expandable_segments:True, max_split_size_mb:128,backend:native")
    assert found == AllocatorSettings(max_split_bytes=134_217_728, expandable_segments=True)
    assert AllocatorSettings.parse("") == AllocatorSettings()
    for text, problem in {
        "roundup_power2_divisions:4": "PYTORCH_ALLOC_CONF: `roundup_power2_divisions:4`",
        "max_split_size_mb:20": "blocks are split up to 20971520 bytes",
        "expandable_segments:yes": "PYTORCH_ALLOC_CONF: `expandable_segments:yes`",
    }.items():
        with pytest.raises(UsageError, match=problem):
            AllocatorSettings.parse(text)
    with pytest.raises(UsageError, match="capacity of -1 bytes"):
        AllocatorSettings(capacity_bytes=-1)


@pytest.mark.parametrize(
    "device, expected",
    [
        ("h100", 33_554_432), ("NVIDIA H200 SXM 141GB", 33_554_432), ("NVIDIA GB200, one GPU of it", 33_554_432),
        ("NVIDIA A100 SXM4 80GB", 8_519_680), ("l40s", 8_519_680), ("NVIDIA V100 SXM2 32GB", 8_519_680),
        ("AMD Instinct MI300X 192GB", 134_217_728), ("mi250x", 33_554_432),
    ],
)  # fmt: skip
def test_workspaces_of_matrix_products(device: str, expected: int):
    assert cublas_workspace_bytes(device) == expected
    assert cublas_workspace_bytes(device, ":4096:8") == 33_554_432
    assert cublas_workspace_bytes(device, ":4096:2:16:8") == 8_519_680
    with pytest.raises(UsageError, match="CUBLAS_WORKSPACE_CONFIG: `4096:8`"):
        cublas_workspace_bytes(device, "4096:8")


def test_buffers_of_nccl():
    assert nccl_buffer_bytes(1) == 0
    assert nccl_buffer_bytes(8, channels=1, connections=1) == 4_194_304 + 524_288 + 4_915_200
    assert nccl_buffer_bytes(8) == 462_422_016


SIZES = st.one_of(
    st.integers(0, 3000), st.integers(1, 24).map(lambda n: n * MIB // 2), st.integers(1, 60 * MIB),
    st.sampled_from([MIB, MIB + 1, 10 * MIB - 512, 10 * MIB, 40 * MIB]),
)  # fmt: skip
STEPS = st.lists(st.tuples(st.integers(0, 9), SIZES, st.integers(0, 1), st.integers(0, 10**6)), max_size=60)


def steps_of(drawn: list[tuple[int, int, int, int]]) -> list[tuple[int, ...]]:
    """Events that can be: what is freed was allocated."""
    rows: list[tuple[int, ...]] = []
    used: list[int] = []
    waiting: list[int] = []
    for number, (kind, size, stream, pick) in enumerate(drawn):
        if kind < 5:
            rows.append((ALLOC, number, size, stream))
            used.append(number)
        elif kind < 8 and used:
            rows.append((FREE, used.pop(pick % len(used))))
        elif kind == 8 and used and pick % 2:
            waiting.append(used.pop(pick % len(used)))
            rows.append((REQUESTED, waiting[-1]))
        elif kind == 8 and waiting:
            rows.append((COMPLETED, waiting.pop(pick % len(waiting))))
        elif kind == 9 and pick % 5 == 0:
            rows.append((EMPTY_CACHE, 0))
    return rows


def plainly(rows: list[tuple[int, ...]], plain: NaiveAllocator) -> tuple[list[tuple[int, ...]], int | None]:
    found: list[tuple[int, ...]] = []
    for i, (action, block, *rest) in enumerate(rows):
        taken = address = 0
        known = any(s.block == block for s in plain.spans)
        if action == ALLOC and rest[0]:
            span = plain.alloc(block, rest[0], rest[1])
            if span is None:
                return found, i
            taken, address = span.length, span.begin
        elif action == EMPTY_CACHE:
            plain.empty_cache()
        elif known and action == REQUESTED:
            plain.wait(block)
        elif known and action in (FREE, COMPLETED):
            plain.free(block)
        found.append((plain.total("used"), plain.reserved, plain.requested(), taken, address))
        assert plain.reserved == plain.total("used", "waiting", "free")
    return found, None


@given(
    STEPS,
    st.sampled_from([None, 64 * MIB, 100 * MIB, 200 * MIB]),
    st.sampled_from([None, 21 * MIB, 40 * MIB]),
    st.booleans(),
)
@settings(deadline=None, max_examples=300)
def test_as_the_plain_one(drawn: list[tuple[int, int, int, int]], capacity: int | None, split: int | None, grows: bool):
    rows, nothing = steps_of(drawn), float("inf")
    given = AllocatorSettings(
        capacity_bytes=capacity, max_split_bytes=None if grows else split, expandable_segments=grows
    )
    plain = NaiveAllocator(capacity or nothing, given.max_split_bytes or nothing, grows)
    expected, failed = plainly(rows, plain)
    found = simulate_allocator(events(*rows) if rows else AllocatorEvents.of([], [], []), given)
    columns = found.allocated_bytes, found.reserved_bytes, found.requested_bytes, found.taken_bytes
    where = found.address % SPACE if grows else found.address  # each pool has its own addresses
    assert found.failed_event == failed
    assert np.stack([*columns, where], axis=1).tolist() == [list(row) for row in expected]
