"""When jobs start and where, as texts: `--at 0,5ms --place 0-3,8`."""

from collections.abc import Sequence

from etude.base.errors import UsageError
from etude.base.units import parse_time


def starts_of(text: str, jobs: int) -> tuple[int, ...]:
    """When each job starts, in ns; all at 0 where nothing is said."""
    if not text:
        return (0,) * jobs
    times = [parse_time(part.strip()) for part in text.split(",")]
    if len(times) != jobs:
        raise UsageError(f"--at: {len(times)} times for {jobs} jobs", hint="give one for each of PATHS: --at 0,5ms")
    early = [time for time in times if time < 0]
    if early:
        raise UsageError(f"--at: a job starts at {early[0]} ns, before the run", hint="use 0 or later")
    return tuple(times)


def ranks_of(given: Sequence[str], jobs: int) -> tuple[tuple[int, ...], ...] | None:
    """`0-3,8` for each job; None where nothing is said."""
    if given and len(given) != jobs:
        raise UsageError(
            f"--place: {len(given)} places for {jobs} jobs", hint="give one for each of PATHS: --place 0-3,8"
        )
    return tuple(map(_ranks, given)) or None


def _ranks(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for piece in text.split(","):
        first, dash, last = piece.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UsageError(f"--place: `{piece}` is not a rank or a range of ranks", hint="--place 0-3,8")
        if dash and int(last) - int(first) >= 1 << 20:
            raise UsageError(f"--place: `{piece}` has more ranks than any system")
        found += range(int(first), int(last) + 1) if dash else [int(first)]
    return tuple(found)
