from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import figure, part, switch
from etude.base.outputs import OutputPlace, Printed, Written
from etude.base.parameters import is_given, spelled
from etude.base.talk import progress, say
from etude.base.units import counted
from etude.steps.asked.job_out import To
from etude.steps.asked.runs import tell_absent
from etude.steps.asked.times import tell_times
from etude.surface.api.linking import LinkInput, LinkSource
from etude.surface.cli.output import emit
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.model.job import Job


@dataclass(frozen=True, kw_only=True)
class Link(LinkInput, Written):
    """A Chakra trace from what PyTorch recorded: operators, launches, kernels and their dependencies

    etude link host.json.gz kineto.json.gz -o rank0.et
    etude link kineto.json.gz -o rank0.et
    etude link run/ -o job/
    etude link run/ -o columns/ --to parquet
    """

    out: str = figure(
        "out", "the `.et` file to write (`.et.gz`: compressed), or the folder for a run of several ranks", names=("-o",)
    )
    to: To = figure(
        "choice", "the format of a run: a file per rank, or a Parquet folder, which keeps both timings", To.ET
    )
    as_official: bool = switch("write what Chakra's own linker and converter produce, byte for byte")
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class LinkInputs:
    source: LinkSource
    place: OutputPlace
    as_official: bool
    to: To = To.ET


@dataclass(frozen=True, slots=True)
class LinkResult:
    report: dict[str, Any]
    out: Path
    run: "Job | None" = None
    """The job of a run of several ranks."""
    rank: int | None = None
    """The rank that a trace of one rank names, if any."""
    left_behind: bool = False
    """The job has both timings, and its files one of them."""


def inputs(asked: Link) -> LinkInputs:
    place = OutputPlace.of(asked)
    assert place is not None
    source = LinkSource.of(asked, one_rank=asked.as_official)
    if not source.is_run and is_given(asked, "to"):
        raise UsageError(
            f"{spelled(asked, 'to')} is read only where PATH is a folder, without DEVICE and "
            f"{spelled(asked, 'as_official')}"
        )
    return LinkInputs(source, place, asked.as_official, asked.to if source.is_run else To.ET)


def run(given: LinkInputs) -> LinkResult:
    """Links one rank, or the folder of a run, and writes the result."""
    from etude.base.files import writing
    from etude.capture.ingest import reading, runs
    from etude.model.as_recorded import has_both_times
    from etude.steps.asked.converting import write_files
    from etude.store import cards, chakra

    source, out = given.source, given.place.path
    total = len(runs.find_run(source.path)[1]) if source.is_run else None
    with writing(out, force=given.place.force) as path:
        with progress(f"linking {source.device or source.path}", total) as advance:
            if given.as_official:
                decoded, report = source.official()
                _write(decoded, path)
                return LinkResult(report, out)
            found = source.linked("" if source.is_run else reading.stem(out), advance)
        if not source.is_run:
            decoded, _, _ = chakra.for_rank(
                found.job, int(found.job.ranks[0]), chakra.world_to_say(found.job, has_group_file=False)
            )
            _write(decoded, path)
            return LinkResult(found.report, out, rank=found.rank)
        path.mkdir()
        write_files(found.job, path, given.to)
        if found.card is not None:
            cards.write(found.card, path / cards.NAME)
    return LinkResult(found.report, out, found.job, left_behind=given.to != To.PARQUET and has_both_times(found.job))


def _write(decoded: Any, path: Path) -> None:
    from etude.capture.ingest import reading

    with open(path, "wb") as file:
        for piece in reading.packed(decoded, path):
            file.write(piece)


def record(found: LinkResult) -> dict[str, Any]:
    """The report; what was written is said with it."""
    if found.run is None:
        say(f"wrote {found.out}")
        _tell_other_rank(found)
        return found.report
    tell_absent(found.run)
    tell_times(found.run)
    if found.left_behind:
        say("note: these files keep the times of the program; `--to parquet` keeps those under the profiler as well")
    for note in found.run.notes:
        say(f"note: rank {note.rank}: {note.what}")
    say(f"wrote {counted(len(found.report['ranks']), 'rank')} to {found.out}")
    return found.report


def _tell_other_rank(found: LinkResult) -> None:
    """A reader takes the rank from the file's name, `name.{rank}.et`; without one it is 0."""
    from etude.store import chakra

    if found.rank is None or not found.out.is_file():
        return
    called, ranks = chakra.find_ranks(found.out)
    read_as = next(iter(ranks))
    if read_as != found.rank:
        better = f"{called}.{found.rank}{found.out.name.removeprefix(called).removeprefix(f'.{read_as}')}"
        say(f"note: it is rank {found.rank}, and `{found.out.name}` is read as rank {read_as}: name it `{better}`")


def show(found: LinkResult) -> None:
    if found.run is None:
        emit(found.report)
    else:
        emit([{key: row[key] for key in row if key != "unmatched"} for row in found.report["ranks"]])
        for entry in found.report["unmatched"]:
            say(f"not linked: {entry['count']:,} x {entry['reason']}")
    record(found)


VERBS = (Verb("link", Link, inputs, run, record=record, show=show),)
