"""Settings that are texts: `--share hbm=compute:0.8`, `--slow-link 0-1=2`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec

from etude.base.errors import UsageError
from etude.base.units import parse_bandwidth, parse_bytes, parse_time
from etude.machine.grain import Access, Grain
from etude.run.simulate.options import Overlap, RemoteMemory
from etude.run.simulate.shares import Draw


def pairs(option: str, given: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise UsageError(f"--{option}: `{text}` is not NAME=VALUE")
        found.append((name, value))
    return found


def numbers(option: str, given: Sequence[str]) -> dict[str, float]:
    found = {}
    for name, value in _once(option, given).items():
        try:
            found[name] = float(value)
        except ValueError:
            raise UsageError(f"--{option}: `{value}` is not a number") from None
    return found


def _once(option: str, given: Sequence[str], known: Collection[str] = ()) -> dict[str, str]:
    """By name; a name that is not among those known, or that is given twice, is refused."""
    found: dict[str, str] = {}
    for name, value in pairs(option, given):
        if known and name not in known:
            raise UsageError(f"--{option}: unknown name `{name}`", hint=f"known: {', '.join(known)}")
        if name in found:
            raise UsageError(f"--{option}: `{name}` is given twice", hint="leave one of them out")
        found[name] = value
    return found


def shares(given: Sequence[str]) -> dict[str, Any]:
    """`NAME=CLASS:DEMAND*WEIGHT/CHUNK,CLASS>CLASS`: those before a `>` come first; demand and weight are 1 by default,
    a chunk is a size or a time."""
    found: dict[str, Any] = {}
    for name, text in _once("share", given).items():
        draws: dict[str, Any] = {}
        for priority, level in enumerate(text.split(">")):
            for part in level.split(","):
                klass, draw = _draw(name, part.strip(), priority)
                if klass in draws:
                    raise UsageError(f"--share: {name}: `{klass}` is given twice")
                draws[klass] = draw
        found[name] = draws
    return found


def _draw(name: str, part: str, priority: int) -> tuple[str, Any]:
    text, slash, chunk = part.partition("/")
    klass, _, figures = text.partition(":")
    demand, _, weight = (figures or "1").partition("*")
    sizes: dict[str, int] = {}
    if slash:
        timed = chunk.endswith("s")
        sizes = {"chunk_ns": round(parse_time(chunk))} if timed else {"chunk_bytes": parse_bytes(chunk)}
    try:
        return klass, Draw(demand=float(demand or 1), weight=float(weight or 1), priority=priority, **sizes)
    except ValueError:
        raise UsageError(f"--share: {name}: `{part}` is not CLASS:DEMAND*WEIGHT/CHUNK") from None


def grain(given: Sequence[str]) -> Grain:
    """Loads and stores of lines."""
    found = _once("grain", given, ("line", "outstanding", "ctas", "rate", "access"))
    if found.keys() <= {"line"}:
        raise UsageError("--grain: the size of a line alone limits nothing", hint="outstanding=4096, or ctas=16")
    counts = {name: found.get(name, "0") for name in ("outstanding", "ctas")}
    for name, text in counts.items():
        if not text.isdecimal():
            raise UsageError(f"--grain: {name}: `{text}` is not a number")
    if found.get("access", "store") not in list(Access):
        raise UsageError(f"--grain: unknown access `{found['access']}`", hint=f"known: {', '.join(Access)}")
    return Grain(
        line_bytes=parse_bytes(found.get("line", "128B")),
        cta_bytes_per_s=parse_bandwidth(found["rate"]) if "rate" in found else 0.0,
        access=Access(found.get("access", "store")),
        **{name: int(text) for name, text in counts.items()},
    )


def overlap(given: Sequence[str]) -> Overlap:
    _once("overlap", given, ("compute", "communication"))
    return Overlap(**numbers("overlap", given))


def remote_memory(given: Sequence[str]) -> RemoteMemory:
    found = _once("remote-memory", given, ("bandwidth", "latency", "capacity"))
    if "bandwidth" not in found:
        raise UsageError("--remote-memory: no bandwidth is given", hint="bandwidth=50GB/s")
    return RemoteMemory(
        bytes_per_s=parse_bandwidth(found["bandwidth"]),
        latency_ns=parse_time(found.get("latency", "0")),
        capacity_bytes=parse_bytes(found.get("capacity", "0")),
    )


def slow_ranks(given: Sequence[str]) -> dict[int, float]:
    return {_rank("slow-rank", rank): factor for rank, factor in numbers("slow-rank", given).items()}


def jitter(given: Sequence[str]) -> dict[str, float]:
    """`NAME=SPREAD`, or `@FILE`: the spread of whole steps that `etude trend --json` found."""
    found: dict[str, float] = {}
    for text in given:
        more = _spread_in(Path(text[1:])) if text.startswith("@") else numbers("jitter", [text])
        if twice := found.keys() & more:
            raise UsageError(f"--jitter: `{twice.pop()}` is given twice", hint="leave one of them out")
        found |= more
    return found


def _spread_in(path: Path) -> dict[str, float]:
    hint = "give a file that `etude trend --json` wrote"
    try:
        content = msgspec.json.decode(path.read_bytes())
    except OSError as problem:
        raise UsageError(str(problem.strerror or problem).lower(), where=f"--jitter @{path}", hint=hint) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise UsageError("is not JSON", where=f"--jitter @{path}", hint=hint) from None
    spread = content.get("residual_spread") if isinstance(content, dict) else None
    if not isinstance(spread, int | float) or isinstance(spread, bool):
        raise UsageError("has no number `residual_spread`", where=f"--jitter @{path}", hint=hint)
    return {"step": float(spread)}


def slow_links(slow: Sequence[str], failed: Sequence[str]) -> dict[tuple[int | str, int | str], float]:
    found: dict[tuple[int | str, int | str], float] = {}
    links = [("slow-link", text, factor) for text, factor in numbers("slow-link", slow).items()]
    for option, text, factor in [*links, *(("failed-link", text, float("inf")) for text in failed)]:
        ends = _ends(option, text)
        if ends in found:
            raise UsageError(f"--{option}: `{text}` is given twice", hint="leave one of them out")
        found[ends] = factor
    return found


def link_changes(given: Sequence[str]) -> tuple[tuple[int, tuple[int | str, int | str], float], ...]:
    """`TIME:END/END=FACTOR`, each from its time on."""
    found = []
    for text, factor in numbers("link-change", given).items():
        time, colon, ends = text.partition(":")
        if not colon:
            raise UsageError(f"--link-change: `{text}` has no time", hint="10ms:0-1=4")
        found.append((round(parse_time(time)), _ends("link-change", ends), factor))
    return tuple(found)


def _ends(option: str, text: str) -> tuple[int | str, int | str]:
    """Two ends of a link: `0-1` are two ranks, `nic.0/leaf.0` two vertices; a number instead of a vertex is a rank."""
    a, slash, b = text.partition("/")
    if slash and a and b:
        return int(a) if a.isdecimal() else a, int(b) if b.isdecimal() else b
    a, _, b = text.partition("-")
    return _rank(option, a), _rank(option, b)


def _rank(option: str, text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"--{option}: `{text}` is not a rank")
    return int(text)
