"""Files in, files out: what the official linker wrote."""

from __future__ import annotations

from pathlib import Path

from etude.base.errors import FormatError
from etude.capture.ingest import reading
from etude.capture.ingest.official.trace import convert
from etude.store.chakra import Decoded


def converted(path: Path) -> Decoded:
    """The trace of a file that the official linker wrote, or of a host trace alone."""
    try:
        return convert(reading.load_squeezed(path))[0]
    except FormatError:
        return convert(reading.load_host(path))[0]  # the place that the error names is one in the file
