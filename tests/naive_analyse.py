"""Slow twins of the kernels of the analyses."""

from __future__ import annotations


def time_by_mask(intervals: list[tuple[int, int, int]], width: int) -> list[int]:
    """Nanosecond by nanosecond: which classes run."""
    total = [0] * (1 << width)
    if not intervals:
        return total
    for t in range(min(s for s, _, _ in intervals), max(e for _, e, _ in intervals)):
        mask = 0
        for start, end, bits in intervals:
            if start <= t < end:
                mask |= bits
        total[mask] += 1
    return total


def merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    out: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def covered(intervals: list[tuple[int, int, int]], groups: int) -> list[int]:
    return [len({t for start, end, group in intervals if group == g for t in range(start, end)}) for g in range(groups)]
