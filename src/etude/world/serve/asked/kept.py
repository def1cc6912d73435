"""What is kept of a result that was served: a folder for `etude query` and `etude report`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etude.base.figures import figure
from etude.base.outputs import OutputPlace, Written
from etude.base.talk import say
from etude.world.serve.stored.folder import write_served

OUTPUT = "Output"


@dataclass(frozen=True, kw_only=True)
class KeptStream(Written):
    """Parameters of a stream that is kept."""

    out: str | None = figure("out", "folder for `etude query` and `etude report`", None, names=("-o",), panel=OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlace:
    """Where a result is kept, and what was asked, for its record."""

    place: OutputPlace
    said: dict[str, Any]

    @classmethod
    def of(cls, asked: KeptStream, said: Callable[[], dict[str, Any]]) -> ServedPlace | None:
        place = OutputPlace.of(asked)
        return None if place is None else cls(place=place, said=said())

    def keep(self, served: Any, record: dict[str, Any], write: Callable[..., None] = write_served) -> None:
        write(served, record | {"asked": self.said}, self.place.path, force=self.place.force)
        say(f"wrote {self.place.path}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingKept:
    """What is served, and where its result is kept."""

    serving: Any
    folder: ServedPlace | None


def told(serving: Any) -> Any:
    """The result of what is served, after its notes."""
    found = serving.run()
    for note in found.notes:
        say(f"note: {note}")
    return found
