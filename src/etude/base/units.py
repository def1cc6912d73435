"""Sizes, times, rates and counts, from text and to text, in exact integers.

    parse_bytes("64MB") == 64_000_000          format_bytes(64_000_000) == "64 MB"
    parse_bytes("64MiB") == 64 * 2**20         format_bytes(2**26, binary=True) == "64 MiB"
    parse_time("1.5ms") == 1_500_000           format_time(1_500_000) == "1.5 ms"
    parse_bandwidth("400Gb/s") == 50 * 10**9   format_bandwidth(50 * 10**9) == "50 GB/s"
    parse_count("1.2M") == 1_200_000           format_count(1_200_000) == "1.2 M"

`format_*` rounds half up to `digits` significant digits; with `digits=None` it rounds nothing, and
`parse_*` of the text gives the number back. A text that is not a whole number of the smallest unit is
refused, never rounded.
"""

import re
from datetime import UTC, datetime
from fractions import Fraction

from etude.base.errors import UsageError

INT64_MAX = 2**63 - 1
_EXACT_DECIMALS = 9  # exact text goes to a smaller unit before it takes more: 2**60 + 1 in EiB takes 60

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}

_BYTES_DECIMAL = {f"{prefix}B": scale for prefix, scale in _DECIMAL.items()}
_BYTES_BINARY = {"B": 1} | {f"{prefix}B": scale for prefix, scale in _BINARY.items()}
_TIME = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}

_READ = (
    ("ns", 1, 1e3),
    ("µs", 1e3, 1e6),
    ("ms", 1e6, 1e9),
    ("s", 1e9, 120e9),
    ("min", 60e9, 7200e9),
    ("h", 3600e9, float("inf")),
)
"""Unit, its nanoseconds, and below which time it is the one to read."""

_Scales = dict[str, int] | dict[str, Fraction]
_NUMBER = re.compile(r"(-?(?:[0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)(?:e[+-]?[0-9]{1,2})?)\s*(.*)", re.DOTALL)


def _with_lower_case(scales: dict[str, int]) -> dict[str, int]:
    # Not case-blind: `Mb` is megabits to half of its readers, so it is never a megabyte here.
    return {unit.lower(): scale for unit, scale in scales.items()} | scales


_PARSE_BYTES = {"": 1, "KB": 10**3} | _with_lower_case(_BYTES_DECIMAL | _BYTES_BINARY)
_PARSE_TIME = _TIME | {"µs": 10**3, "μs": 10**3, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_PARSE_COUNT = _DECIMAL | {"K": 10**3, "B": 10**9}
# Here only case distinguishes bytes from bits, so each unit has one spelling (two for kilobytes).
_PARSE_BANDWIDTH = {
    f"{unit}/s": Fraction(scale) for unit, scale in ({"KB": 10**3} | _BYTES_DECIMAL | _BYTES_BINARY).items()
} | {
    f"{prefix}{ending}": Fraction(scale, 8)
    for prefix, scale in (_DECIMAL | _BINARY).items()
    for ending in ("b/s", "bps")
}


def parse_bytes(text: str | int) -> int:
    """A size in bytes: `64MB` is decimal, `64MiB` binary, a bare number is bytes."""
    return _parse(text, _PARSE_BYTES, what="a size", whole="bytes", hint="write for example 64MB, 64MiB or 67108864")


def parse_time(text: str | int) -> int:
    """A time in nanoseconds: `1.5ms`, `-20us`, `2min`. Text needs its unit (except 0); an int is nanoseconds."""
    return _parse(text, _PARSE_TIME, what="a time", whole="nanoseconds", hint="write for example 500ns, 1.5ms or 2s")


def parse_bandwidth(text: str | int) -> int:
    """A rate in bytes per second: `50GB/s` is bytes, `400Gb/s` and `400Gbps` are bits. An int is bytes per second."""
    return _parse(
        text,
        _PARSE_BANDWIDTH,
        what="a bandwidth",
        whole="bytes per second",
        hint="write for example 50GB/s (bytes) or 400Gb/s (bits)",
    )


def parse_count(text: str | int) -> int:
    """A plain number: `1200`, `1.2k`, `7B`."""
    return _parse(text, _PARSE_COUNT, what="a count", whole="units", hint="write for example 1200, 1.2k, 1.2M or 7B")


def format_bytes(size_bytes: int, *, binary: bool = False, digits: int | None = 3) -> str:
    return _format(size_bytes, _BYTES_BINARY if binary else _BYTES_DECIMAL, digits)


def format_time(time_ns: int, *, digits: int | None = 3) -> str:
    return _format(time_ns, _TIME, digits)


def readable_time(time_ns: float) -> str:
    """A time as people read it, in four digits: `950 ns`, `12.35 µs`, `812.4 ms`, `3.102 s`, `14.22 min`, `2.5 h`."""
    unit, scale = next((unit, scale) for unit, scale, below in _READ if abs(time_ns) < below)
    return f"{time_ns / scale:.4g} {unit}"


def is_moment(time_ns: float) -> bool:
    """Profilers count from 1970 on, and no run takes three years: what is larger is not a length of time."""
    return time_ns >= 10**17


def clock_time(time_ns: float) -> str:
    """The time of day of a moment, in UTC: `06:44:29.488559`."""
    moment = datetime.fromtimestamp(int(time_ns) // 10**9, UTC)
    return f"{moment:%H:%M:%S}.{int(time_ns) % 10**9 // 1000:06}"


def format_bandwidth(bytes_per_s: int, *, digits: int | None = 3) -> str:
    return _format(bytes_per_s, _BYTES_DECIMAL, digits) + "/s"


def format_count(count: int, *, digits: int | None = 3) -> str:
    return _format(count, _DECIMAL, digits).rstrip()


def counted(count: int, noun: str) -> str:
    """`1 rank`, `1,024 ranks`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _parse(text: str | int, scales: _Scales, *, what: str, whole: str, hint: str) -> int:
    if isinstance(text, int) and not isinstance(text, bool):
        value = Fraction(text)
    elif isinstance(text, str):
        value = _value(text, scales, what=what, hint=hint)
    else:
        raise UsageError(f"`{text}` is not {what}", hint=hint)
    if value.denominator != 1:
        raise UsageError(f"`{text}` is not a whole number of {whole}")
    if abs(value) > INT64_MAX:
        raise UsageError(f"`{_shown(text)}` does not fit in 64 bits")
    if value < 0 and scales is not _PARSE_TIME:
        raise UsageError(f"`{text}` is negative, but {what} must not be")
    return int(value)


def _value(text: str, scales: _Scales, *, what: str, hint: str) -> Fraction:
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= 64 else None
    if match is None:
        raise UsageError(f"`{_shown(text)}` is not {what}", hint=hint)
    number, unit = Fraction(match[1].replace("_", "")), match[2]
    if unit in scales:
        return number * scales[unit]
    if not unit and number == 0:
        return number
    problem = f"unknown unit `{unit}` in `{text}`" if unit else f"`{text}` has no unit"
    raise UsageError(problem, hint=hint)


def _shown(text: str | int) -> str:
    shown = str(text)
    return shown if len(shown) <= 64 else f"{shown[:61]}..."


def _format(value: int, scales: dict[str, int], digits: int | None) -> str:
    sign, size = ("-", -value) if value < 0 else ("", value)
    ladder = list(scales.items())
    step = max((k for k, (_, scale) in enumerate(ladder) if size >= scale), default=0)
    if digits is None:
        while size * 10**_EXACT_DECIMALS % ladder[step][1]:
            step -= 1  # ends at the first unit, whose scale is 1
        return f"{sign}{_point(size * 10**_EXACT_DECIMALS // ladder[step][1], _EXACT_DECIMALS)} {ladder[step][0]}"
    text = _rounded(size, ladder[step][1], digits)
    # 999_999 rounds to 1000 kB, which is called 1 MB.
    if step + 1 < len(ladder) and int(text.partition(".")[0]) * ladder[step][1] >= ladder[step + 1][1]:
        step += 1
        text = _rounded(size, ladder[step][1], digits)
    return f"{sign}{text} {ladder[step][0]}"


def _rounded(size: int, scale: int, digits: int) -> str:
    decimals = max(0, digits - len(str(size // scale))) if scale > 1 else 0
    scaled = (2 * size * 10**decimals + scale) // (2 * scale)
    return _point(scaled, decimals)


def _point(scaled: int, decimals: int) -> str:
    if not decimals:
        return str(scaled)
    whole, rest = divmod(scaled, 10**decimals)
    return f"{whole}.{rest:0{decimals}}".rstrip("0").rstrip(".")
