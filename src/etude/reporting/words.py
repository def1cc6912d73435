"""Figures as people read them."""

from __future__ import annotations

from etude.units import format_bandwidth, format_bytes, format_count, format_time


def time(ns: float) -> str:
    return format_time(round(ns)).replace("us", "µs")


def size(amount: float) -> str:
    return format_bytes(round(amount))


def rate(bytes_per_s: float) -> str:
    return format_bandwidth(round(bytes_per_s))


def flops(per_s: float) -> str:
    number, _, unit = format_count(round(per_s)).partition(" ")
    return f"{number} {unit}FLOP/s"


def percent(share: float) -> str:
    """A share of 1; small ones keep a digit, and what is not all of it is never called 100%."""
    value = 100 * share
    if 0 < value < 0.1:
        return "<0.1%"
    if 99.9 < value < 100:
        return ">99.9%"
    return f"{value:.1f}%" if 0 < value < 10 or 99 < value < 100 else f"{value:.0f}%"


def number(count: float) -> str:
    return f"{round(count):,}"


def times(ratio: float) -> str:
    return f"{ratio:.3g}x"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def short(name: str, most: int = 60) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def named(items: list[str], most: int = 3) -> str:
    """`a, b and 4 more`."""
    shown = items[:most]
    if len(items) > most:
        return f"{', '.join(shown)} and {len(items) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)
