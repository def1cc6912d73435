"""Files of PyTorch's Flight Recorder: JSON (`_dump_nccl_trace_json`, `name.rank3.fr.json.gz`) or a pickle
(`nccl_trace_rank_3`), each checked field by field before anything is made of it.

What a field may hold is said by the types below. A file that claims more than its bytes can hold (groups of millions, a
list that stands in many places) is refused. Fields that are not listed are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from etude.base.errors import FormatError, UsageError
from etude.capture.ingest import plain_pickle
from etude.model.job import MAX_WORLD
from etude.store import compressed

_SIGNS: Final = (b"collective_seq_id", b"p2p_seq_id", b"profiling_name", b"pg_config")
_DIGITS: Final = re.compile(r"\d+")
_RANK: Final = re.compile(r"rank[._-]?(\d+)|(\d+)(?:\.fr)?(?:\.json)?(?:\.gz|\.zst)?$")
_OTHERS: Final = (".et", ".parquet", ".html", ".yaml")
_HEAD: Final = 1 << 16
_DIMENSIONS: Final = 64

Count = Annotated[int, Meta(ge=0, le=2**62)]
Rank = Annotated[int, Meta(ge=0, lt=MAX_WORLD)]
Shapes = list[Annotated[list[Count], Meta(max_length=_DIMENSIONS)]]


class Entry(msgspec.Struct, gc=False):
    """One communication as a rank recorded it."""

    profiling_name: str
    record_id: Count = 0
    pg_id: int = 0
    process_group: tuple[str | int, ...] | None = None
    """Name and description."""
    collective_seq_id: Count | None = None
    p2p_seq_id: Count | None = None
    is_p2p: bool | None = None
    state: str | None = None
    """scheduled, started or completed."""
    time_created_ns: Count | None = None
    time_discovered_started_ns: Count | None = None
    time_discovered_completed_ns: Count | None = None
    retired: bool | None = None
    input_sizes: Shapes | None = None
    output_sizes: Shapes | None = None
    input_dtypes: list[str] | None = None
    output_dtypes: list[str] | None = None

    @property
    def group(self) -> str:
        return str(self.process_group[0]) if self.process_group else str(self.pg_id)

    @property
    def is_done(self) -> bool:
        return bool(self.retired) or self.state == "completed" or bool(self.time_discovered_completed_ns)


class _Group(msgspec.Struct):
    pg_name: str | int | None = None
    name: str | int | None = None
    ranks: list[Rank] | str | None = None
    group_size: Annotated[int, Meta(ge=0)] | None = None


class _File(msgspec.Struct):
    entries: list[Entry]
    rank: Rank | None = None
    pg_config: dict[str, _Group] | list[_Group] | None = None


@dataclass(slots=True)
class Dump:
    path: Path
    rank: int
    entries: list[Entry]
    """In the order in which they were recorded."""
    groups: dict[str, tuple[int, ...]]
    """Members by the group's name; empty is all ranks."""
    world: int


def is_dump(path: Path) -> bool:
    """Whether this is a file of the Flight Recorder."""
    if not path.is_file() or path.suffix in _OTHERS:
        return False
    head = compressed.head(path, _HEAD)
    return b"entries" in head and b"traceEvents" not in head and any(sign in head for sign in _SIGNS)


def dumps_in(path: Path) -> list[Path]:
    """The dumps at a path: one file, or those of a folder. A damaged file with the name of a dump is included, so that
    reading refuses it instead of skipping it."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
        called = {_DIGITS.sub("#", file.name) for file in files if is_dump(file)}
        return [file for file in files if _DIGITS.sub("#", file.name) in called]
    return [path] if is_dump(path) else []


def read(path: Path, max_bytes: int | None = None) -> Dump:
    """One dump, checked."""
    data, size = compressed.load(path, max_bytes)
    raw = data[:size].tobytes()
    del data
    found = _typed(_plain(raw, path), len(raw), path)
    rank = _rank(found, path)
    groups, sizes = _groups(found.pg_config, path)
    world = max([max(m) + 1 for m in groups.values() if m] + [*sizes, rank + 1])
    return Dump(path, rank, sorted(found.entries, key=lambda entry: entry.record_id), groups, world)


def _plain(raw: bytes, path: Path) -> dict[str, Any]:
    """The file's content as dicts, lists, numbers and texts."""
    if raw.lstrip()[:1] == b"{":
        try:
            found = msgspec.json.decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError) as problem:
            raise FormatError(f"not a dump of the Flight Recorder: {problem}", path=path) from None
    else:
        found = plain_pickle.loads(raw, path)
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise FormatError("not a dump of the Flight Recorder: it has no list of entries", path=path)
    return found


def _typed(found: dict[str, Any], size: int, path: Path) -> _File:
    """The content by field; a list that a pickle has in many places counts in each."""
    room = size
    for listed in _listed(found):
        room -= len(listed)
        if room < 0:
            raise FormatError(f"the dump claims more entries than its {size:,} bytes can hold", path=path)
    try:
        return msgspec.convert({name: found.get(name) for name in _File.__struct_fields__}, _File)
    except (msgspec.ValidationError, ValueError, TypeError, OverflowError, RecursionError) as problem:
        raise FormatError(f"not a dump of the Flight Recorder: {problem}", path=path) from None


def _listed(found: dict[str, Any]) -> Iterator[Sequence[Any]]:
    """Every list whose entries will be read."""
    yield found["entries"]
    for entry in found["entries"]:
        if isinstance(entry, dict):
            for name in ("process_group", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes"):
                if isinstance(entry.get(name), list | tuple):
                    yield entry[name]
    said = found.get("pg_config")
    for group in said.values() if isinstance(said, dict) else said if isinstance(said, list | tuple) else ():
        if isinstance(group, dict) and isinstance(group.get("ranks"), list | tuple | str):
            yield group["ranks"]


def _rank(found: _File, path: Path) -> int:
    if found.rank is not None:
        return found.rank
    said = _RANK.search(path.name)
    if said is None:
        raise UsageError("the dump does not name its rank", where=str(path), hint="name it `trace_rank_3`")
    digits = said.group(1) or said.group(2)
    if len(digits) > 9 or int(digits) >= MAX_WORLD:
        raise FormatError(f"rank {digits[:20]} is too large", path=path, hint=f"at most {MAX_WORLD:,} ranks are read")
    return int(digits)


def _groups(said: Any, path: Path) -> tuple[dict[str, tuple[int, ...]], list[int]]:
    """Members by name, and sizes, of `pg_config`: a list of groups, or a dict by name, members maybe as text."""
    named = said.items() if isinstance(said, dict) else ((None, one) for one in said or ())
    groups: dict[str, tuple[int, ...]] = {}
    sizes = []
    for key, one in named:
        name = next((n for n in (one.pg_name, one.name, key) if n is not None), "")
        members = _members(one.ranks, str(name), path)
        size = one.group_size if one.group_size is not None else len(members)
        if size > MAX_WORLD or (members and size < len(members)):
            told = f"group `{name}` has {size:,} members, {len(members):,} of them listed"
            raise FormatError(told, path=path, hint=f"at most {MAX_WORLD:,} ranks are read")
        groups[str(name)] = members
        sizes.append(size)
    return groups, sizes


def _members(said: list[int] | str | None, name: str, path: Path) -> tuple[int, ...]:
    if isinstance(said, str):
        texts = re.findall(r"\d+", said)
        if any(len(text) > 9 or int(text) >= MAX_WORLD for text in texts) or re.search(r"[^\d\s,\[\](){}]", said):
            raise FormatError(f"group `{name}`: `{said[:60]}` is not a list of ranks", path=path)
        said = [int(text) for text in texts]
    members = tuple(said or ())
    if len(set(members)) != len(members):
        raise FormatError(f"group `{name}` has a rank twice", path=path)
    return members
