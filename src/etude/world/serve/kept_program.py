"""Passes of a config of transformers are kept on disk, as those of the catalogue are: their dry run takes minutes.

A function of one's own is run every time: what it imports, or reads, is not known.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from zipfile import BadZipFile

import numpy as np

from etude.base.files import writing
from etude.base.talk import say
from etude.capture.dry.served import PassPoint
from etude.machine.system import System
from etude.world.serve.catalogue import code_digest, steps_folder
from etude.world.serve.program_tables import KINDS, ProgramFacts, ProgramTables, ServedProgram, program_tables

LIBRARIES: Final = ("torch", "transformers")
"""Whose versions decide what a config does."""


def kept_tables(program: ServedProgram, system: System, *, ranks: int = 1) -> ProgramTables:
    """From disk if made before by the same code and libraries, otherwise made now."""
    path = _path(program, system, ranks)
    found = None if path is None else read_tables(path)
    if found is not None:
        return found
    say(f"dry run of the passes of {program.spec}: this takes two minutes for a model of 32 layers")
    made = program_tables(program, system, ranks=ranks)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tables(made, path)
    return made


def write_tables(made: ProgramTables, path: Path) -> None:
    facts = json.dumps({"facts": asdict(made.facts), "points": [asdict(point) for point in made.points]})
    with writing(path, force=True, own=True) as temporary, temporary.open("wb") as file:
        np.savez(file, time_ns=made.time_ns, work_nj=made.work_nj, facts=np.array(facts))


def _path(program: ServedProgram, system: System, ranks: int) -> Path | None:
    """None: it is not kept."""
    config = Path(program.spec)
    if config.suffix != ".json" or not config.is_file():
        return None
    given = (config.name, config.read_bytes(), program.answers, system, ranks, KINDS, [*map(_version, LIBRARIES)])
    digest = hashlib.sha256(repr(given).encode() + code_digest("capture/dry", "world/serve"))
    return steps_folder() / f"program-{digest.hexdigest()[:32]}.npz"


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def read_tables(path: Path) -> ProgramTables | None:
    """None: they are not there, or cannot be read."""
    try:
        with np.load(path) as stored:
            told = json.loads(str(stored["facts"]))
            facts = ProgramFacts(**told["facts"] | {"notes": tuple(told["facts"]["notes"])})
            points = tuple(PassPoint(**point) for point in told["points"])
            return ProgramTables(points, stored["time_ns"], stored["work_nj"], facts)
    except (OSError, KeyError, ValueError, TypeError, BadZipFile):
        return None
