"""Files in, files out: the official linker and converter as commands. Each returns what there is to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from etude.base.errors import FormatError
from etude.base.files import logged, write_pieces, writing
from etude.capture.ingest import reading, text
from etude.capture.ingest.official.commands import ConvertPyTorch, ConvertText, LogLevel, TraceLink
from etude.capture.ingest.official.json_out import linked_json
from etude.capture.ingest.official.order import simulated_order
from etude.capture.ingest.official.trace import convert
from etude.store import chakra


@dataclass(frozen=True, slots=True)
class LinkFiles:
    """The pair of a rank, and the linked JSON."""

    rank: int
    host: Path
    device: Path
    out: Path
    level: LogLevel
    """The least level of what is said; that the file was written is of level INFO."""

    @classmethod
    def of(cls, asked: TraceLink) -> LinkFiles:
        return cls(asked.rank, Path(asked.host), Path(asked.device), Path(asked.out), asked.log_level)

    def write(self) -> str:
        write_pieces(self.out, linked_json(reading.load_host(self.host), reading.load_device(self.device)))
        is_told = self.level in (LogLevel.DEBUG, LogLevel.INFO)
        return f"wrote {self.out}: rank {self.rank}, linked" if is_told else ""


@dataclass(frozen=True, slots=True)
class PyTorchFiles:
    """A linked JSON or a host trace alone, and its `.et`."""

    source: Path
    out: Path
    log: Path | None
    order: Path | None
    """Where to write when each node runs; None: nowhere."""

    @classmethod
    def of(cls, asked: ConvertPyTorch) -> PyTorchFiles:
        source, out, log = Path(asked.source), Path(asked.out), None if asked.log is None else Path(asked.log)
        if asked.simulate:
            return cls(source, out, None, log or Path("debug.log"))
        return cls(source, out, log, None)

    def write(self) -> str:
        decoded = converted(self.source)
        write_pieces(self.out, reading.packed(decoded, self.out))
        told = logged(f"wrote {self.out}: {len(decoded.trace):,} nodes", self.log)
        if self.order is None:
            return told
        write_pieces(self.order, (f"{line}\n".encode() for line in simulated_order(decoded.trace)))
        return f"{told}\nwrote {self.order}: when each node runs"


@dataclass(frozen=True, slots=True)
class TextFiles:
    """ASTRA-sim's text workload, and one `.et` per rank."""

    source: Path
    out: Path
    num_npus: int
    passes: int
    log: Path | None

    @classmethod
    def of(cls, asked: ConvertText) -> TextFiles:
        log = None if asked.log is None else Path(asked.log)
        return cls(Path(asked.source), Path(asked.out), asked.num_npus, asked.num_passes, log)

    def write(self, advance: Callable[[int], None] = lambda amount: None) -> str:
        """`advance` is called for each file."""
        out = self.out
        job = text.read_text(self.source, self.num_npus, passes=self.passes)
        world = chakra.world_to_say(job)
        for rank in job.ranks.tolist():
            found, id_base, tag_base = chakra.for_rank(job, rank, world)
            parts = chakra.encode_parts(found, id_base=id_base, tag_base=tag_base)
            write_pieces(f"{out}.{rank}.et", (piece.tobytes() for piece in parts))
            advance(1)
        if len(job.groups):
            with writing(f"{out}.json", force=True) as path:
                chakra.write_groups(job, path)
        return logged(f"wrote {out}.0.et to {out}.{self.num_npus - 1}.et: {job.nodes:,} nodes", self.log)


def converted(path: Path) -> chakra.Decoded:
    """The trace of a file that the official linker wrote, or of a host trace alone."""
    try:
        return convert(reading.load_squeezed(path))[0]
    except FormatError:
        return convert(reading.load_host(path))[0]  # the place that the error names is one in the file
