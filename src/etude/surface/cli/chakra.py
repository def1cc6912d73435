"""`etude chakra`: the six commands of Chakra's official tools, with their flags and their output."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import FormatError, UsageError
from etude.base.figures import figure
from etude.surface.cli.output import progress, say
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.store.official_samples import SampleOptions

OUTPUT = "the file to write. An existing file is replaced"
LOG = "file that messages are written to as well"


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"

    @classmethod
    def _missing_(cls, value: object) -> "LogLevel | None":
        return next((one for one in cls if one.value == str(value).upper()), None)


@dataclass(frozen=True, kw_only=True)
class TraceLink:
    """Host and device trace of a rank in one JSON, as `chakra_trace_link` writes it

    etude chakra trace_link --rank 0 --chakra-host-trace host.json --chakra-device-trace kineto.json \\
    --output-file linked.json

    `etude link` builds a better graph from the same files in one step: with the order of streams and with waits.
    """

    rank: int = figure("count", "rank of the two traces, for messages", zero=True)
    host: str = figure(
        "path", "the host trace that ExecutionTraceObserver wrote; it may be compressed", key="chakra_host_trace"
    )
    device: str = figure("path", "the device trace that the profiler (Kineto) wrote", key="chakra_device_trace")
    out: str = figure("out", "the linked JSON to write. An existing file is replaced", key="output_file")
    log_level: LogLevel = figure(
        "choice", "least level of the messages; what was written is of level INFO", LogLevel.INFO, of=LogLevel
    )


@dataclass(frozen=True, kw_only=True)
class ConvertPyTorch:
    """A linked JSON, or a host trace alone, as `.et`

    etude chakra converter PyTorch --input linked.json --output rank.0.et
    """

    source: str = figure("path", "the file that `trace_link` wrote, or a host trace alone", key="input")
    out: str = figure("out", "the `.et` file to write. An existing file is replaced", key="output")
    simulate: bool = figure("switch", "also write when each node is issued and completed, to the log", False)
    log: str | None = figure(
        "out", "log: messages, or with --simulate when each node runs (by default `debug.log`)", None,
        key="log_filename",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ConvertText:
    """An ASTRA-sim text workload as one `.et` file per rank

    etude chakra converter Text --input resnet.txt --output resnet --num-npus 4 --num-passes 2
    """

    source: str = figure("path", "ASTRA-sim's text workload", key="input")
    out: str = figure("out", "files are `OUTPUT.{rank}.et`. An existing file is replaced", key="output")
    num_npus: int = figure("count", "number of ranks; all run the same layers", like="8")
    num_passes: int = figure("count", "passes over the layers", like="3")
    log: str | None = figure("out", LOG, None, key="log_filename")


@dataclass(frozen=True, kw_only=True)
class FromFile:
    """Parameters of what makes one file of another."""

    source: str = figure("path", "the Chakra trace (`.et`) to read", key="input_filename", names=("--input_filename",))
    out: str = figure("out", OUTPUT, key="output_filename", names=("--output_filename",), like="other.dot")


@dataclass(frozen=True, kw_only=True)
class Jsonizer(FromFile):
    """A trace as text: protobuf's JSON of each node, as `chakra_jsonizer` writes it

    etude chakra jsonizer --input_filename rank.0.et --output_filename rank.0.json --valid
    """

    valid: bool = figure(
        "switch", "write one JSON list. The official tool writes objects one after another, without commas", False
    )


@dataclass(frozen=True, kw_only=True)
class Visualizer(FromFile):
    """The graph of a trace, as `chakra_visualizer` writes it: `.graphml`, `.dot`, or `.pdf` where Graphviz is installed

    etude chakra visualizer --input_filename rank.0.et --output_filename rank.0.graphml

    A `.dot` file has no layout, for which `dot` needs hours on a large graph; graph tools read the file as it is.
    """


@dataclass(frozen=True, kw_only=True)
class Generator:
    """The 14 sample traces of `chakra_generator` for each NPU, into the current folder

    etude chakra generator --num_npus 2
    """

    num_npus: int = figure("count", "number of NPUs; each sample is one file per NPU", 64, names=("--num_npus",))
    default_runtime: int = figure(
        "count", "duration of compute nodes in microseconds", 5, zero=True, names=("--default_runtime",)
    )
    default_tensor_size: int = figure(
        "count", "size of memory nodes and messages in bytes", 1024, zero=True, names=("--default_tensor_size",)
    )
    default_comm_size: int = figure(
        "count", "size of collectives in bytes", 65536, zero=True, names=("--default_comm_size",)
    )


@dataclass(frozen=True, kw_only=True)
class TimelineVisualizer(FromFile):
    """A simulator's log as a timeline for Chrome, as `chakra_timeline_visualizer` writes it, its times in milliseconds

    etude chakra timeline_visualizer --input_filename log.csv --output_filename t.json --num_npus 2 --npu_frequency 1000
    """

    source: str = figure(
        "path", "a text file with lines `issue,...` and `callback,...`", key="input_filename",
        names=("--input_filename",),
    )  # fmt: skip
    num_npus: int = figure("count", "number of NPUs of the system", names=("--num_npus",), like="8")
    npu_frequency: int = figure("count", "clock of the cycles in the file, in MHz", names=("--npu_frequency",))
    log: str | None = figure("out", LOG, None, key="log_filename", names=("--log_filename",))


@dataclass(frozen=True, slots=True)
class Files:
    """What a command reads and writes."""

    source: Path
    out: Path
    log: Path | None = None
    """A file for messages; None: they are said and not written."""


@dataclass(frozen=True, slots=True)
class LinkInputs:
    rank: int
    host: Path
    device: Path
    out: Path
    level: LogLevel


@dataclass(frozen=True, slots=True)
class PyTorchInputs:
    files: Files
    order: Path | None
    """Where to write when each node runs; None: nowhere."""


@dataclass(frozen=True, slots=True)
class TextInputs:
    files: Files
    npus: int
    passes: int


@dataclass(frozen=True, slots=True)
class TimelineInputs:
    files: Files
    npus: int
    mhz: int


def meant(args: list[str]) -> "str | tuple[str, list[str]]":
    """Options of the official converter stand before its word: `converter --log-filename x.log PyTorch --input ...`."""
    if args[:1] != ["converter"] or not "".join(args[1:2]).startswith("--log-filename"):
        return ""
    at = 2 if "=" in args[1] else 3
    return (f"chakra converter {args[at]}", [*args[1:at], *args[at + 1 :]]) if len(args) > at else ""


def files_of(asked: Any) -> Files:
    log = getattr(asked, "log", None)  # not every command has one
    return Files(Path(asked.source), Path(asked.out), None if log is None else Path(log))


def tell(text: str, log: Path | None = None) -> None:
    """Says a line, and writes it to the log if there is one."""
    from etude.base.files import writing

    say(text)
    if log is not None:
        with writing(log, force=True) as path:
            path.write_text(f"{text}\n", encoding="utf-8")


def write_bytes(out: Path | str, pieces: Iterable[Any]) -> None:
    from etude.base.files import writing

    with writing(out, force=True) as path, path.open("wb") as file:
        for piece in pieces:
            file.write(piece)


def write_lines(out: Path, lines: Iterable[str]) -> None:
    from etude.base.files import writing

    with writing(out, force=True) as path, path.open("w", encoding="utf-8") as file:
        file.writelines(lines)


def link_inputs(asked: TraceLink) -> LinkInputs:
    return LinkInputs(asked.rank, Path(asked.host), Path(asked.device), Path(asked.out), asked.log_level)


def trace_link(given: LinkInputs) -> None:
    from etude.capture.ingest import official, reading

    with progress(f"linking rank {given.rank}"):
        pieces = official.linked_json(reading.load_host(given.host), reading.load_device(given.device))
        write_bytes(given.out, pieces)
    if given.level in (LogLevel.DEBUG, LogLevel.INFO):
        say(f"wrote {given.out}: rank {given.rank}, linked")


def pytorch_inputs(asked: ConvertPyTorch) -> PyTorchInputs:
    source, out, log = Path(asked.source), Path(asked.out), None if asked.log is None else Path(asked.log)
    if asked.simulate:
        return PyTorchInputs(Files(source, out), log or Path("debug.log"))
    return PyTorchInputs(Files(source, out, log), None)


def convert_pytorch(given: PyTorchInputs) -> None:
    from etude.capture.ingest import official, reading

    source, out = given.files.source, given.files.out
    with progress(f"converting {source}"):
        decoded = official.converted(source)
        write_bytes(out, reading.packed(decoded, out))
    tell(f"wrote {out}: {len(decoded.trace):,} nodes", given.files.log)
    if given.order is not None:
        write_lines(given.order, (f"{line}\n" for line in official.simulated_order(decoded.trace)))
        say(f"wrote {given.order}: when each node runs")


def convert_text(given: TextInputs) -> None:
    from etude.base.files import writing
    from etude.capture.ingest import text
    from etude.store import chakra as et

    out, npus = given.files.out, given.npus
    job = text.read_text(given.files.source, npus, passes=given.passes)
    world = et.world_to_say(job)
    with progress(f"writing {out}", npus) as advance:
        for rank in job.ranks.tolist():
            found, id_base, tag_base = et.for_rank(job, rank, world)
            parts = et.encode_parts(found, id_base=id_base, tag_base=tag_base)
            write_bytes(f"{out}.{rank}.et", (piece.tobytes() for piece in parts))
            advance(1)
    if len(job.groups):
        with writing(f"{out}.json", force=True) as path:
            et.write_groups(job, path)
    tell(f"wrote {out}.0.et to {out}.{npus - 1}.et: {job.nodes:,} nodes", given.files.log)


def jsonizer(given: tuple[Files, bool]) -> str:
    from etude.store.official_json import official_json, read_one

    files, valid = given
    decoded = read_one(files.source)
    with progress(f"writing {files.out}"):
        write_lines(files.out, official_json(decoded, valid=valid))
    return f"wrote {files.out}: {len(decoded.trace):,} nodes"


def visualizer_inputs(asked: Visualizer) -> tuple[Files, str]:
    """With the program that renders a PDF; empty for the other formats."""
    from etude.tell.view.official_graph import graphviz

    files = files_of(asked)
    if files.out.suffix not in (".graphml", ".dot", ".pdf"):
        problem = f"a graph cannot be written as `{files.out.suffix}`"
        raise UsageError(problem, where=f"--output_filename {files.out}", hint=".graphml, .dot, .pdf")
    return files, graphviz(files.out) if files.out.suffix == ".pdf" else ""


def visualizer(given: tuple[Files, str]) -> str:
    from etude.base.files import writing
    from etude.store.official_json import read_one
    from etude.tell.view.official_graph import official_dot, official_graphml, write_pdf

    files, render = given
    decoded, out = read_one(files.source), files.out
    lines = official_graphml(decoded.trace) if out.suffix == ".graphml" else official_dot(decoded.trace)
    with progress(f"writing {out}"):
        if render:
            with writing(out, force=True) as path:
                write_pdf(render, "".join(lines), path)
        else:
            write_lines(out, lines)
    return f"wrote {out}: {len(decoded.trace):,} nodes"


def generator_inputs(asked: Generator) -> "SampleOptions":
    from etude.store.official_samples import SampleOptions

    return SampleOptions(
        num_npus=asked.num_npus, runtime_us=asked.default_runtime, tensor_bytes=asked.default_tensor_size,
        comm_bytes=asked.default_comm_size,
    )  # fmt: skip


def generator(given: "SampleOptions") -> str:
    from etude.store.official_samples import SAMPLES, sample_files

    files = len(SAMPLES) * given.num_npus
    with progress("writing", files) as advance:
        for name, content in sample_files(given):
            write_bytes(name, [content])
            advance(1)
    return f"wrote {files:,} files: {len(SAMPLES)} samples for {given.num_npus:,} NPUs"


def timeline_visualizer(given: TimelineInputs) -> None:
    from etude.tell.view.official_timeline import official_timeline

    source, out = given.files.source, given.files.out
    try:
        with source.open(encoding="utf-8") as lines, progress(f"reading {source}"):
            text = official_timeline(lines, str(source), num_npus=given.npus, mhz=given.mhz)
    except UnicodeDecodeError:
        raise FormatError(
            "is not a text file", path=source, hint="expected lines `issue,...` and `callback,...`"
        ) from None
    write_lines(out, [text])
    tell(f"wrote {out}", given.files.log)


def said(result: None) -> None:
    """Such a command says itself what it wrote, since its log may want it too."""


VERBS = (
    Verb(name="chakra trace_link", asks=TraceLink, inputs=link_inputs, run=trace_link, show=said),
    Verb(
        name="chakra converter PyTorch", asks=ConvertPyTorch, inputs=pytorch_inputs, run=convert_pytorch, show=said,
    ),
    Verb(
        name="chakra converter Text", asks=ConvertText, run=convert_text, show=said,
        inputs=lambda asked: TextInputs(files_of(asked), asked.num_npus, asked.num_passes),
    ),
    Verb(
        name="chakra jsonizer", asks=Jsonizer, inputs=lambda asked: (files_of(asked), asked.valid), run=jsonizer,
        show=say,
    ),
    Verb(name="chakra visualizer", asks=Visualizer, inputs=visualizer_inputs, run=visualizer, show=say),
    Verb(name="chakra generator", asks=Generator, inputs=generator_inputs, run=generator, show=say),
    Verb(
        name="chakra timeline_visualizer", asks=TimelineVisualizer, run=timeline_visualizer, show=said,
        inputs=lambda asked: TimelineInputs(files_of(asked), asked.num_npus, asked.npu_frequency),
    ),
)  # fmt: skip
