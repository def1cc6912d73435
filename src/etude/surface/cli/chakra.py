"""`etude chakra`: the six commands of Chakra's official tools, with their flags and their output."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import CONVERT, app
from etude.surface.cli.groups import Group
from etude.surface.cli.output import progress, say

if TYPE_CHECKING:
    from etude.store.chakra import Decoded

chakra = typer.Typer(
    cls=Group,
    help="The official Chakra tools' commands, with their flags and their output: link, convert, show, generate",
    no_args_is_help=True,
)
app.add_typer(chakra, name="chakra", rich_help_panel=CONVERT)
converter = typer.Typer(
    cls=Group, help="A Chakra trace (`.et`) from a PyTorch trace or a text workload", no_args_is_help=True
)
chakra.add_typer(converter, name="converter")

Input = Annotated[Path, typer.Option("--input_filename", help="The Chakra trace (`.et`) to read.")]
Output = Annotated[Path, typer.Option("--output_filename", help="The file to write. An existing file is replaced.")]


@chakra.command(name="trace_link")
def trace_link(
    rank: Annotated[int, typer.Option("--rank", min=0, help="Rank of the two traces.")],
    host: Annotated[
        Path,
        typer.Option(
            "--chakra-host-trace", help="The host trace that ExecutionTraceObserver wrote; it may be compressed."
        ),
    ],
    device: Annotated[
        Path, typer.Option("--chakra-device-trace", help="The device trace that the profiler (Kineto) wrote.")
    ],
    out: Annotated[Path, typer.Option("--output-file", help="The linked JSON to write. An existing file is replaced.")],
    log_level: Annotated[str, typer.Option("--log-level", help="Accepted, and has no effect.")] = "INFO",
) -> None:
    """Host and device trace of a rank in one JSON, as `chakra_trace_link` writes it

    etude chakra trace_link --rank 0 --chakra-host-trace host.json --chakra-device-trace kineto.json \
--output-file linked.json

    `etude link` builds a better graph from the same files in one step: with the order of streams and with waits.
    """
    from etude.base.files import writing
    from etude.capture.ingest import official, reading

    del log_level
    with writing(out, force=True) as path, progress(f"linking rank {rank}"):
        pieces = official.linked_json(reading.load_host(host), reading.load_device(device))
        with open(path, "wb") as file:
            for piece in pieces:
                file.write(piece)
    say(f"wrote {out}: rank {rank}, linked")


@converter.callback()
def converter_flags(
    context: typer.Context,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log-filename", help="The log that `--simulate` writes: when each node runs. By default `debug.log`."
        ),
    ] = None,
) -> None:
    """A Chakra trace (`.et`) from a PyTorch trace or a text workload, as `chakra_converter` writes it"""
    context.meta["log"] = log or Path("debug.log")


@converter.command(name="PyTorch")
def of_pytorch(
    context: typer.Context,
    source: Annotated[Path, typer.Option("--input", help="The file that `trace_link` wrote, or a host trace alone.")],
    out: Annotated[Path, typer.Option("--output", help="The `.et` file to write. An existing file is replaced.")],
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Also write to the log when each node is issued and completed.")
    ] = False,
) -> None:
    """A linked JSON, or a host trace alone, as `.et`

    etude chakra converter PyTorch --input linked.json --output rank.0.et
    """
    from etude.base.files import writing
    from etude.capture.ingest import official, reading

    with writing(out, force=True) as path, progress(f"converting {source}"):
        decoded, _ = official.convert(reading.load_host(source))
        with open(path, "wb") as file:
            for piece in reading.packed(decoded, path):
                file.write(piece)
    say(f"wrote {out}: {len(decoded.trace):,} nodes")
    if simulate:
        log: Path = context.meta["log"]
        with writing(log, force=True) as path, path.open("w", encoding="utf-8") as lines:
            lines.writelines(f"{line}\n" for line in official.simulated_order(decoded.trace))
        say(f"wrote {log}: when each node runs")


@converter.command(name="Text")
def of_text(
    source: Annotated[Path, typer.Option("--input", help="ASTRA-sim's text workload.")],
    out: Annotated[Path, typer.Option("--output", help="Files are `OUTPUT.{rank}.et`. An existing file is replaced.")],
    npus: Annotated[int, typer.Option("--num-npus", min=1, help="Number of ranks; all run the same layers.")],
    passes: Annotated[int, typer.Option("--num-passes", min=1, help="Passes over the layers.")],
) -> None:
    """An ASTRA-sim text workload as one `.et` file per rank

    etude chakra converter Text --input resnet.txt --output resnet --num-npus 4 --num-passes 2
    """
    from etude.base.files import writing
    from etude.capture.ingest import text
    from etude.store import chakra as et

    job = text.read_text(source, npus, passes=passes)
    world = et.world_to_say(job)
    with progress(f"writing {out}", npus) as advance:
        for rank in job.ranks.tolist():
            found, id_base, tag_base = et.for_rank(job, rank, world)
            with writing(f"{out}.{rank}.et", force=True) as path, path.open("wb") as file:
                for piece in et.encode_parts(found, id_base=id_base, tag_base=tag_base):
                    file.write(piece.tobytes())
            advance(1)
    if len(job.groups):
        with writing(f"{out}.json", force=True) as path:
            et.write_groups(job, path)
    say(f"wrote {out}.0.et to {out}.{npus - 1}.et: {job.nodes:,} nodes")


@chakra.command()
def jsonizer(
    source: Input,
    out: Output,
    valid: Annotated[
        bool,
        typer.Option(
            "--valid", help="Write one JSON list. The official tool writes objects one after another, without commas."
        ),
    ] = False,
) -> None:
    """A trace as text: protobuf's JSON of each node, as `chakra_jsonizer` writes it

    etude chakra jsonizer --input_filename rank.0.et --output_filename rank.0.json --valid
    """
    from etude.base.files import writing
    from etude.store.official_json import official_json

    decoded = _decoded(source)
    with writing(out, force=True) as path, path.open("w", encoding="utf-8") as file, progress(f"writing {out}"):
        file.writelines(official_json(decoded, valid=valid))
    say(f"wrote {out}: {len(decoded.trace):,} nodes")


@chakra.command()
def visualizer(source: Input, out: Output) -> None:
    """The graph of a trace, as `chakra_visualizer` writes it: `.graphml`, `.dot`, or `.pdf` where Graphviz is installed

    etude chakra visualizer --input_filename rank.0.et --output_filename rank.0.graphml

    A `.dot` file has no layout, for which `dot` needs hours on a large graph; graph tools read the file as it is.
    """
    from etude.base.files import writing
    from etude.tell.view.official_graph import official_dot, official_graphml

    if out.suffix not in (".graphml", ".dot", ".pdf"):
        raise UsageError(f"a graph cannot be written as `{out.suffix}`", where=str(out), hint=".graphml, .dot, .pdf")
    render = _graphviz(out) if out.suffix == ".pdf" else ""
    decoded = _decoded(source)
    lines = official_graphml(decoded.trace) if out.suffix == ".graphml" else official_dot(decoded.trace)
    with writing(out, force=True) as path, progress(f"writing {out}"):
        if render:
            _pdf(render, "".join(lines), path)
        else:
            with path.open("w", encoding="utf-8") as file:
                file.writelines(lines)
    say(f"wrote {out}: {len(decoded.trace):,} nodes")


@chakra.command()
def generator(
    npus: Annotated[int, typer.Option("--num_npus", help="Number of NPUs; each sample is one file per NPU.")] = 64,
    runtime: Annotated[int, typer.Option("--default_runtime", help="Duration of compute nodes in microseconds.")] = 5,
    tensor: Annotated[
        int, typer.Option("--default_tensor_size", help="Size of memory nodes and messages in bytes.")
    ] = 1024,
    comm: Annotated[int, typer.Option("--default_comm_size", help="Size of collectives in bytes.")] = 65536,
) -> None:
    """The 14 sample traces of `chakra_generator` for each NPU, into the current folder

    etude chakra generator --num_npus 2
    """
    from etude.base.files import writing
    from etude.store.official_samples import SAMPLES, SampleOptions, sample_files

    options = SampleOptions(num_npus=npus, runtime_us=runtime, tensor_bytes=tensor, comm_bytes=comm)
    with progress("writing", len(SAMPLES) * npus) as advance:
        for name, content in sample_files(options):
            with writing(name, force=True) as path:
                path.write_bytes(content)
            advance(1)
    say(f"wrote {len(SAMPLES) * npus:,} files: {len(SAMPLES)} samples for {npus:,} NPUs")


@chakra.command(name="timeline_visualizer")
def timeline_visualizer(
    source: Annotated[
        Path, typer.Option("--input_filename", help="A text file with lines `issue,...` and `callback,...`.")
    ],
    out: Output,
    npus: Annotated[int, typer.Option("--num_npus", min=1, help="Number of NPUs of the system.")],
    mhz: Annotated[int, typer.Option("--npu_frequency", min=1, help="Clock of the cycles in the file, in MHz.")],
    log: Annotated[str, typer.Option("--log_filename", help="Accepted, and has no effect.")] = "debug.log",
) -> None:
    """A simulator's log as a timeline for Chrome, as `chakra_timeline_visualizer` writes it, its times in milliseconds

    etude chakra timeline_visualizer --input_filename log.csv --output_filename t.json --num_npus 2 --npu_frequency 1000
    """
    from etude.base.errors import FormatError
    from etude.base.files import writing
    from etude.tell.view.official_timeline import official_timeline

    del log
    try:
        with source.open(encoding="utf-8") as lines, progress(f"reading {source}"):
            text = official_timeline(lines, str(source), num_npus=npus, mhz=mhz)
    except UnicodeDecodeError:
        raise FormatError(
            "is not a text file", path=source, hint="expected lines `issue,...` and `callback,...`"
        ) from None
    with writing(out, force=True) as path:
        path.write_text(text, encoding="utf-8")
    say(f"wrote {out}")


def _decoded(path: Path) -> "Decoded":
    """Reads one `.et` file, compressed or not. Raises FormatError for JSON."""
    from etude.base.errors import FormatError
    from etude.store import chakra as et
    from etude.store import compressed

    heap, size = compressed.load(path)
    if heap[:1].tobytes() in (b"{", b"["):
        hint = "`etude chakra converter PyTorch` converts it"
        raise FormatError("is JSON, but a Chakra trace (`.et`) is needed", path=path, hint=hint)
    return et.decode_files(heap, [(0, size, str(path))])[0]


def _graphviz(out: Path) -> str:
    from shutil import which

    found = which("dot")
    if found is None:
        hint = "install Graphviz, or write `.graphml` or `.dot`"
        raise UsageError("a PDF needs the program `dot` of Graphviz, which was not found", where=str(out), hint=hint)
    return found


def _pdf(dot: str, text: str, path: Path) -> None:
    import subprocess

    done = subprocess.run([dot, "-Tpdf", "-o", str(path)], input=text.encode(), capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(f"`dot` failed: {said[0] if said else done.returncode}", hint="write `.graphml` instead")
