import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.base.errors import UsageError
from etude.base.units import (
    INT64_MAX,
    format_bandwidth,
    format_bytes,
    format_count,
    format_time,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_time,
    readable_time,
)

SIZES = st.integers(0, INT64_MAX)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64", 64),
        (64, 64),
        ("64MB", 64_000_000),
        ("64 MB", 64_000_000),
        ("64mb", 64_000_000),
        ("64MiB", 67_108_864),
        ("1.5KiB", 1536),
        ("0.1GB", 100_000_000),
        ("1_000 kB", 1_000_000),
        ("2e3B", 2000),
        (".5kB", 500),
    ],
)
def test_bytes_are_read(text: str | int, size: int):
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("1.5ms", 1_500_000),
        ("20us", 20_000),
        ("20µs", 20_000),
        ("-3ns", -3),
        ("2min", 120 * 10**9),
        ("1h", 3600 * 10**9),
        ("0", 0),
        (17, 17),
        ("0.000000001 s", 1),
    ],
)
def test_times_are_read(text: str | int, time_ns: int):
    assert parse_time(text) == time_ns


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("50GB/s", 50 * 10**9),
        ("400Gb/s", 50 * 10**9),
        ("400Gbps", 50 * 10**9),
        ("8kb/s", 1000),
        ("8kB/s", 8000),
        ("1GiB/s", 2**30),
    ],
)
def test_bandwidths_are_read(text: str, bytes_per_s: int):
    assert parse_bandwidth(text) == bytes_per_s


def test_counts_are_read():
    assert [parse_count(text) for text in ("12", "1.2k", "1.2 M", "7B", "3T")] == [
        12,
        1200,
        1_200_000,
        7 * 10**9,
        3 * 10**12,
    ]


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        (parse_bytes, "", "is not a size"),
        (parse_bytes, "MB", "is not a size"),
        (parse_bytes, "1.2.3", "unknown unit"),
        (parse_bytes, "64Mb", "unknown unit `Mb`"),  # megabits or megabytes?
        (parse_bytes, "64M", "unknown unit `M`"),  # decimal or binary?
        (parse_bytes, "0.5", "not a whole number of bytes"),
        (parse_bytes, "-1", "is negative"),
        (parse_bytes, -1, "is negative"),
        (parse_bytes, True, "is not a size"),
        (parse_bytes, 1.5, "is not a size"),
        (parse_bytes, "8EiB", "does not fit in 64 bits"),
        (parse_bytes, "9" * 5000, "is not a size"),
        (parse_time, "100", "has no unit"),
        (parse_time, "1.5ns", "not a whole number of nanoseconds"),
        (parse_bandwidth, "1b/s", "not a whole number of bytes per second"),
        (parse_bandwidth, "400gb/s", "unknown unit"),  # bits or bytes?
        (parse_count, "many", "is not a count"),
    ],
)
def test_what_is_unclear_is_refused(parse, text, why: str):
    with pytest.raises(UsageError, match=why):
        parse(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (1234, "1.23 kB"),
        (1235, "1.24 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (64_000_000, "64 MB"),
        (-1500, "-1.5 kB"),
        (INT64_MAX, "9.22 EB"),
    ],
)
def test_bytes_are_shown(size: int, text: str):
    assert format_bytes(size) == text


def test_other_units_are_shown():
    assert format_bytes(1536, binary=True) == "1.5 KiB"
    assert format_bytes(2**20 - 1, binary=True) == "1 MiB"
    assert format_bytes(1023 * 2**10, binary=True) == "1023 KiB"
    assert format_time(1_500_000) == "1.5 ms"
    assert format_time(5400 * 10**9) == "5400 s"
    assert format_time(1_234_567, digits=5) == "1.2346 ms"
    assert format_time(1_234_567, digits=None) == "1.234567 ms"
    assert format_bytes(2**20 + 2**9, binary=True, digits=None) == "1024.5 KiB"
    assert format_bytes(2**60 + 1, digits=None, binary=True) == "1152921504606846977 B"
    assert format_bandwidth(50 * 10**9) == "50 GB/s"
    assert format_count(1_200_000) == "1.2 M"
    assert format_count(12) == "12"


@given(SIZES, st.booleans())
def test_exact_bytes_come_back(size: int, binary: bool):
    assert parse_bytes(format_bytes(size, binary=binary, digits=None)) == size


@given(st.integers(-INT64_MAX, INT64_MAX))
def test_exact_times_come_back(time_ns: int):
    assert parse_time(format_time(time_ns, digits=None)) == time_ns


@given(SIZES)
def test_exact_rates_and_counts_come_back(number: int):
    assert parse_bandwidth(format_bandwidth(number, digits=None)) == number
    assert parse_count(format_count(number, digits=None)) == number


@given(SIZES)
def test_rounded_bytes_are_within_half_of_the_third_digit(size: int):
    assert abs(parse_bytes(format_bytes(size)) - size) * 200 <= size


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(0, "0 ns"), (950, "950 ns"), (12_345, "12.35 µs"), (812_400_000, "812.4 ms"), (3_102_000_000, "3.102 s"),
     (90_000_000_000, "90 s"), (853_200_000_000, "14.22 min"), (9_000_000_000_000, "2.5 h"), (-1_500_000, "-1.5 ms")],
)  # fmt: skip
def test_a_time_as_people_read_it(time_ns: int, text: str):
    assert readable_time(time_ns) == text
