"""A folder of what the ranks of a run recorded: which file is what.

`etude collect` writes `trace.rank0.et.json.gz` and its like. Other names that are understood, with any of `.json`,
`.json.gz`, `.json.zst`: `ddp_rank0_et` and `ddp_rank0_kineto`, `host.0` and `device.0`, `dlrm.rank3`, `dlrm.3`,
`dlrm_eg_3`. A file without a rank in its name has that of its content (`recordings`), whatever it is called.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.capture.ingest import reading, recordings
from etude.capture.ingest.program_time import USUAL, WantedTimes
from etude.store import compressed

HOST, DEVICE, FLIGHT, CALLS, MANIFEST = "host", "device", "flight", "calls", "manifest"
LIGHT: Final = "light"
_ROLES: Final = {
    "et": HOST,
    "eg": HOST,  # execution graph, the former name
    "host": HOST,
    "kineto": DEVICE,
    "device": DEVICE,
    "trace": DEVICE,
    "fr": FLIGHT,
    "c10d": CALLS,
    "manifest": MANIFEST,
    "light": LIGHT,
}
_WORDS: Final = "|".join(_ROLES)
_NAME: Final = re.compile(
    rf"(?P<stem>.*?)(?:(?:^|[._-])(?P<before>(?P<graph>et|eg)|{_WORDS})(?=[._-]))?"
    # Not `trace_20`: by custom, the recording of step 20 of one process.
    r"(?:(?:^|[._-])rank[._-]?(?P<rank>\d+)|\.(?P<number>\d+)|(?(graph)[_-](?P<follows>\d+)|(?!)))?"
    rf"(?:(?:^|[._-])(?P<behind>{_WORDS}))?"
)
RECORDING: Final = "recording"
"""Name of recordings of ranks that their names do not distinguish: recording1, recording2."""
_PROCESS: Final = re.compile(r"\.process\d+$")
_ENDINGS: Final = (".json", ".json.gz", ".json.zst")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """The files of one rank. All have a device trace."""

    rank: int | None
    device: Path
    host: Path | None = None
    flight: Path | None = None
    calls: Path | None = None
    manifest: Path | None = None
    light: Path | None = None
    times: WantedTimes = USUAL


def find_run(path: Path, times: WantedTimes | None = None) -> tuple[str, list[RankFiles]]:
    """(name, ranks) of the run in a folder, or of the one named `folder/name`, with the times that are wanted."""
    name, ranks = _found(path)
    return name, ranks if times is None else [replace(one, times=times) for one in ranks]


def _found(path: Path) -> tuple[str, list[RankFiles]]:
    if recordings.is_list(path):
        return _listed(path)
    runs = _jobs(runs_in(path))
    if not runs:
        raise UsageError("it has no device trace of PyTorch's profiler", where=str(path), hint="`*.kineto.json.gz`")
    if len(runs) > 1:
        shown = ", ".join(f"`{name or '*'}` ({_said(ranks)})" for name, ranks in list(runs.items())[:8])
        first, of_it = next(iter(runs.items()))
        hint = f"choose one: {of_it[0].device if len(of_it) == 1 else f'{path}/{first}'}"
        raise UsageError(f"several runs in one folder: {shown}", where=str(path), hint=hint)
    name, ranks = next(iter(runs.items()))
    folder = path if path.is_dir() else path.parent
    return name or folder.resolve().name, ranks


def _said(ranks: Sequence[RankFiles]) -> str:
    if len(ranks) == 1:
        return f"one rank: {ranks[0].device.name}"
    return f"{len(ranks)} ranks: {ranks[0].device.name} to {ranks[-1].device.name}"


def _jobs(runs: dict[str, list[RankFiles]]) -> dict[str, list[RankFiles]]:
    """The runs without single processes next to the ranks of a job; those are opened by name."""
    ranks = {name: files for name, files in runs.items() if not _PROCESS.search(name)}
    return ranks or runs


def runs_in(path: Path) -> dict[str, list[RankFiles]]:
    """Name -> ranks of each run in a folder, or of the one named `folder/name`."""
    folder, wanted = (path, None) if path.is_dir() else (path.parent, path.name)
    runs = _by_name(folder, wanted)
    if wanted is None or (not runs and wanted.startswith(RECORDING) and folder.is_dir()):
        runs = _by_content(_by_name(folder, None))
        return runs if wanted is None else {name: runs[name] for name in runs if name == wanted}
    return runs


def _by_name(folder: Path, wanted: str | None) -> dict[str, list[RankFiles]]:
    """Runs by file names."""
    found: dict[str, dict[int | None, dict[str, Path]]] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (entry := _place(file)) is None or (wanted is not None and entry[0] != wanted):
            continue
        stem, rank, role = entry
        files = found.setdefault(stem, {}).setdefault(rank, {})
        if role in files:
            problem = f"two files are the {role} trace of rank {rank}: {files[role].name}, {file.name}"
            raise UsageError(problem, where=str(folder))
        files[role] = file
    runs: dict[str, list[RankFiles]] = {}
    for stem, files_of in found.items():
        numbers = sorted((rank for rank in files_of if DEVICE in files_of[rank]), key=lambda rank: rank or 0)
        if numbers:
            runs[stem] = [RankFiles(rank=rank, **_named(files_of[rank])) for rank in numbers]
    return runs


def _named(files: dict[str, Path]) -> dict[str, Any]:
    """The files of a rank as `RankFiles` names them."""
    return dict(files)


def is_list(path: Path) -> bool:
    """Whether the argument is several files, which are one run."""
    return recordings.is_list(path)


def hosts_in(path: Path) -> dict[str, dict[int, Path]]:
    """Name -> rank -> host trace of each run in a folder without device traces, or of the one named `folder/name`; of a
    file itself."""
    if path.is_file():
        place = _place(path)
        number = place[1] if place is not None else None
        return {reading.stem(path): {number or 0: path}} if _is_host(path) else {}
    if is_list(path):
        return _listed_hosts(path)
    folder, wanted = (path, None) if path.is_dir() else (path.parent, path.name)
    found: dict[str, dict[int, Path]] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        host = _host_place(file)
        if host is not None and wanted in (None, host[0]):
            stem, rank = host
            if (other := found.setdefault(stem, {}).setdefault(rank, file)) is not file:
                hint = "name the files `name.rank{N}.et.json`, or open one of them"
                problem = f"two files are the host trace of rank {rank}: {other.name}, {file.name}"
                raise UsageError(problem, where=str(folder), hint=hint)
    return found


def _listed_hosts(path: Path) -> dict[str, dict[int, Path]]:
    """The same for a list; empty if a file is not a host trace, or two have one rank."""
    files = recordings.listed(path)
    places = [_host_place(file) for file in files]
    found = {place[1]: file for file, place in zip(files, places, strict=True) if place is not None}
    return {files[0].resolve().parent.name: found} if len(found) == len(files) else {}


def _host_place(file: Path) -> tuple[str, int] | None:
    """(Stem, rank) of a host trace, by its content where its name does not say what it is; None if it is none."""
    match = _parsed(file)
    if match is None or not _is_host(file) or _role(match) not in (HOST, None):
        return None
    return match["stem"].rstrip("._-"), _rank(match) or 0


def _is_host(file: Path) -> bool:
    """Whether PyTorch's observer wrote it: it has a schema and nodes."""
    if not file.name.endswith(_ENDINGS):
        return False
    head = compressed.head(file, 1 << 16)
    return b'"schema"' in head and b'"nodes"' in head and b'"traceEvents"' not in head


def _by_content(runs: dict[str, list[RankFiles]]) -> dict[str, list[RankFiles]]:
    """The same, with files without a rank in their names grouped by the ranks in their content."""
    loose = {
        name: ranks[0]
        for name, ranks in runs.items()
        if len(ranks) == 1 and ranks[0].rank is None and not _PROCESS.search(name)
    }
    if len(loose) < 2:
        return runs
    found = recordings.by_rank([one.device for one in loose.values()])
    of_file = {one.device: (name, one) for name, one in loose.items()}
    for number, files in enumerate(found, 1):
        for file in files.values():
            del runs[of_file[file][0]]
        name = f"{RECORDING}{number}" if len(found) > 1 or runs else ""
        runs[name] = [replace(of_file[file][1], rank=rank) for rank, file in files.items()]
    return runs


def _listed(path: Path) -> tuple[str, list[RankFiles]]:
    """(Name, ranks) of a list of files; the rank is in the name of a file, else in its content."""
    files = recordings.listed(path)
    found: dict[int | None, dict[str, Path]] = {}
    for file in files:
        place = _place(file)
        if place is None:
            hint = "a list must have files of PyTorch's profiler; open other formats as a folder or `folder/name`"
            raise UsageError("is not a trace of PyTorch's profiler", where=str(file), hint=hint)
        _, rank, role = place
        if rank is None and role == DEVICE and len(files) > 1:
            rank = recordings.said(file).rank
            if rank < 0:
                hint = "a list must have one file per rank; open other recordings one by one"
                raise UsageError("does not name its rank", where=str(file), hint=hint)
        other = found.setdefault(rank, {}).setdefault(role, file)
        if other is not file:
            hint = "choose one of them: a list is the ranks of one recording"
            raise UsageError(f"both are the {role} trace of rank {rank}: {other}, {file}", hint=hint)
    if bare := sorted(str(rank) for rank, roles in found.items() if DEVICE not in roles):
        raise UsageError(f"no device trace of rank {', '.join(bare)} is in the list", where=str(path)[:200])
    ranks = [RankFiles(rank=rank, **_named(found[rank])) for rank in sorted(found, key=lambda rank: rank or 0)]
    return files[0].resolve().parent.name, ranks


def _place(file: Path) -> tuple[str, int | None, str] | None:
    """(stem, rank, role) of a file; None if it is not part of a run."""
    match = _parsed(file)
    if match is None:
        return None
    role = _role(match) or DEVICE
    if role in (HOST, DEVICE) and not _holds(file, role):
        return None
    return match["stem"].rstrip("._-"), _rank(match), role


def _parsed(file: Path) -> re.Match[str] | None:
    ending = next((e for e in sorted(_ENDINGS, key=len, reverse=True) if file.name.endswith(e)), "")
    return _NAME.fullmatch(file.name.removesuffix(ending)) if ending and file.is_file() else None


def _role(match: re.Match[str]) -> str | None:
    word = match["behind"] or match["before"]
    return _ROLES[word] if word else None


def _rank(match: re.Match[str]) -> int | None:
    number = match["rank"] or match["number"] or match["follows"]
    return int(number) if number and len(number) < 8 else None


def _holds(file: Path, role: str) -> bool:
    head = compressed.head(file, 1 << 16)
    events = b'"traceEvents"' in head or b'"schemaVersion"' in head
    return events if role == DEVICE else not events
