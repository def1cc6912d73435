"""Notes of a timeline: words at a time, in a file beside its index."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from etude.base.errors import UsageError
from etude.base.files import writing
from etude.tell.studio.folders import StudioFolder
from etude.tell.studio.session import StudioRun

FILE: Final = "notes.json"
MOST: Final = 500
LONGEST: Final = 2_000


class TimelineNote(msgspec.Struct, forbid_unknown_fields=True):
    time_ns: int
    ranks: list[int]
    text: str


def notes(one: StudioRun | StudioFolder) -> dict[str, Any]:
    """The notes that were kept, by time."""
    place = one.index.folder.parent / FILE
    try:
        found = msgspec.json.decode(place.read_bytes(), type=list[TimelineNote]) if place.is_file() else []
    except (OSError, msgspec.DecodeError):
        raise UsageError("the notes cannot be read", where=str(place), hint="delete the file") from None
    return {"notes": [msgspec.to_builtins(note) for note in found]}


def keep_notes(one: StudioRun | StudioFolder, given: Any) -> dict[str, Any]:
    """Keeps these notes instead of those before."""
    try:
        found = msgspec.convert(given, list[TimelineNote])
    except msgspec.ValidationError as problem:
        raise UsageError(f"not notes: {problem}") from None
    if len(found) > MOST or any(len(note.text) > LONGEST or len(note.ranks) > MOST for note in found):
        raise UsageError(f"up to {MOST} notes of up to {LONGEST:,} characters are kept")
    place = one.index.folder.parent / FILE
    with writing(place, force=True) as file:
        file.write_bytes(msgspec.json.encode(sorted(found, key=lambda note: note.time_ns)))
    return notes(one)
