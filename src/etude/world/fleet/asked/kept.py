"""Where the result of a fleet is written: a folder for `etude report`, `compare` and `query`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from etude.base.outputs import OutputPlace
from etude.base.talk import say
from etude.world.fleet.days import said_of
from etude.world.fleet.days.request import Provenance
from etude.world.fleet.folder import write_fleet


@dataclass(frozen=True, slots=True)
class FleetInputs:
    """Inputs of a run, and where its result is written."""

    inputs: Any
    place: OutputPlace | None
    asked: Provenance
    """For the folder."""

    def write(self, tables: Any, record: dict[str, Any]) -> None:
        if self.place is not None:
            write_fleet(tables, record | {"asked": self.asked.given}, self.place.path, force=self.place.force)
            say(f"wrote {self.place.path}")


def kept(build: Callable[[Any], Any]) -> Callable[[Any], FleetInputs]:
    """Inputs of a room, and the place."""
    return lambda asked: FleetInputs(build(asked), OutputPlace.of(asked), said_of(asked))


def tell(notes: Iterable[str]) -> None:
    for note in notes:
        say(f"note: {note}")
