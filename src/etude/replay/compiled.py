"""Code that Inductor made of a program: where a recording has it, and how it is run again."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from etude.errors import FormatError

ENDING: Final = ".compiled.json.gz"


def compiled_sources(path: Path) -> dict[str, str]:
    """The code of each compiled graph of a run that `etude collect` recorded; empty where it has none."""
    folder, stem = (path, "") if path.is_dir() else (path.parent, path.name)
    found: dict[str, str] = {}
    for file in sorted(folder.glob(f"*{ENDING}")) if folder.is_dir() else ():
        if not file.name.startswith(stem):
            continue
        try:
            told = json.loads(gzip.decompress(file.read_bytes()))
        except (OSError, EOFError, ValueError) as problem:
            raise FormatError(f"not the code of compiled graphs: {problem}", path=file) from None
        if isinstance(told, dict):
            found |= {key: code for key, code in told.items() if isinstance(code, str)}
    return found


def compiled_call(source: str) -> Callable[[], Any]:
    """What runs the code on arguments of the shapes that it was made for, which it makes itself."""
    module: dict[str, Any] = {"__name__": "etude_compiled"}
    exec(compile(source, "<compiled graph>", "exec"), module)
    given, call = module["get_args"](), module["call"]
    return lambda: call(list(given))
