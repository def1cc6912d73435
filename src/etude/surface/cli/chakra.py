"""`etude chakra`: the six commands of Chakra's official tools, with their flags and their output."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import figure
from etude.base.talk import progress, say
from etude.capture.ingest import official
from etude.store.official_commands import FromFile, Generator, Jsonizer
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.store.official_samples import SampleOptions


@dataclass(frozen=True, kw_only=True)
class Visualizer(FromFile):
    """The graph of a trace, as `chakra_visualizer` writes it: `.graphml`, `.dot`, or `.pdf` where Graphviz is installed

    etude chakra visualizer --input_filename rank.0.et --output_filename rank.0.graphml

    A `.dot` file has no layout, for which `dot` needs hours on a large graph; graph tools read the file as it is.
    """


@dataclass(frozen=True, kw_only=True)
class TimelineVisualizer(FromFile):
    """A simulator's log as a timeline for Chrome, as `chakra_timeline_visualizer` writes it, its times in milliseconds

    etude chakra timeline_visualizer --input_filename log.csv --output_filename t.json --num_npus 2 --npu_frequency 1000
    """

    source: str = figure(
        "path",
        "a text file with lines `issue,...` and `callback,...`",
        key="input_filename",
        names=("--input_filename",),
    )
    num_npus: int = figure("count", "number of NPUs of the system", names=("--num_npus",), like="8")
    npu_frequency: int = figure("count", "clock of the cycles in the file, in MHz", names=("--npu_frequency",))
    log: str | None = figure(
        "out", "file that messages are written to as well", None, key="log_filename", names=("--log_filename",)
    )


def meant(args: list[str]) -> "str | tuple[str, list[str]]":
    """Options of the official converter come before its word: `converter --log-filename x.log PyTorch --input ...`."""
    if args[:1] != ["converter"] or not "".join(args[1:2]).startswith("--log-filename"):
        return ""
    at = 2 if "=" in args[1] else 3
    return (f"chakra converter {args[at]}", [*args[1:at], *args[at + 1 :]]) if len(args) > at else ""


def trace_link(given: "official.LinkFiles") -> str:
    with progress(f"linking rank {given.rank}"):
        return given.write()


def convert_pytorch(given: "official.PyTorchFiles") -> str:
    with progress(f"converting {given.source}"):
        return given.write()


def convert_text(given: "official.TextFiles") -> str:
    with progress(f"writing {given.out}", given.num_npus) as advance:
        return given.write(advance)


def jsonizer(given: tuple[Path, Path, bool]) -> str:
    from etude.store.official_json import write_json

    source, out, valid = given
    with progress(f"writing {out}"):
        return write_json(source, out, valid=valid)


def visualizer_inputs(asked: Visualizer) -> tuple[Path, Path, str]:
    from etude.tell.view.official_graph import graph_program

    return Path(asked.source), Path(asked.out), graph_program(Path(asked.out))


def visualizer(given: tuple[Path, Path, str]) -> str:
    from etude.store.official_json import read_one
    from etude.tell.view.official_graph import write_graph

    source, out, program = given
    with progress(f"writing {out}"):
        return write_graph(read_one(source).trace, out, program)


def generator(given: "SampleOptions") -> str:
    from etude.store.official_samples import SAMPLES, write_samples

    with progress("writing", len(SAMPLES) * given.num_npus) as advance:
        return write_samples(given, advance)


def timeline_visualizer(given: dict[str, Any]) -> str:
    from etude.tell.view.official_timeline import write_timeline

    with progress(f"reading {given['source']}"):
        return write_timeline(**given)


def timeline_inputs(asked: TimelineVisualizer) -> dict[str, Any]:
    log = None if asked.log is None else Path(asked.log)
    files = {"source": Path(asked.source), "out": Path(asked.out), "log": log}
    return {**files, "num_npus": asked.num_npus, "mhz": asked.npu_frequency}


def sample_options(asked: Generator) -> "SampleOptions":
    from etude.store.official_samples import SampleOptions

    return SampleOptions.of(asked)


def show(told: str) -> None:
    """Nothing where the command was asked to say nothing."""
    if told:
        say(told)


VERBS = (
    Verb("chakra trace_link", official.TraceLink, official.LinkFiles.of, trace_link, show=show),
    Verb("chakra converter PyTorch", official.ConvertPyTorch, official.PyTorchFiles.of, convert_pytorch, show=show),
    Verb("chakra converter Text", official.ConvertText, official.TextFiles.of, convert_text, show=show),
    Verb(
        "chakra jsonizer",
        Jsonizer,
        lambda asked: (Path(asked.source), Path(asked.out), asked.valid),
        jsonizer,
        show=show,
    ),
    Verb("chakra visualizer", Visualizer, visualizer_inputs, visualizer, show=show),
    Verb("chakra generator", Generator, sample_options, generator, show=show),
    Verb("chakra timeline_visualizer", TimelineVisualizer, timeline_inputs, timeline_visualizer, show=show),
)
