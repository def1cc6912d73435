"""A profiler's trace with its header, for the examples of `etude memory`."""

from pathlib import Path


def make(folder: Path) -> None:
    (folder / "profiled.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
