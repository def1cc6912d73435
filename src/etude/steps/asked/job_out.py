"""What commands that make a job have in common: where it goes, and in which format."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import figure, part, switch, text
from etude.base.outputs import OutputPlace, Printed
from etude.base.parameters import only_one, spelled
from etude.base.talk import progress, say
from etude.steps.asked.converting import DIALECT_HELP, Dialect, WrittenJob
from etude.steps.asked.plans import memory_limit

if TYPE_CHECKING:
    from etude.make.generate import Generated
    from etude.make.generate.serving import ServedJob
    from etude.model.card import Card
    from etude.model.job import Job


class To(StrEnum):
    PARQUET = "parquet"
    ET = "et"
    JSON = "json"


@dataclass(frozen=True, kw_only=True)
class JobOut:
    """Parameters of what makes a job: where it goes, and in which format."""

    out: str | None = figure(
        "out", "the folder to write; it appears when it is complete", None, names=("-o",), panel="Output"
    )
    to: To = figure(
        "choice", "write one Parquet folder (ranks share traces), or one file per rank", To.PARQUET, panel="Output"
    )
    dialect: Dialect = figure("choice", DIALECT_HELP, Dialect.PLAIN, needs="to=et|to=json", panel="Output")
    no_write: bool = switch("numbers only", panel="Output")
    force: bool = switch("replace what is there", needs="out", names=("-f",), panel="Output")
    output: Printed = part(Printed)


def tell(found: WrittenJob) -> None:
    """Says what was written, and what is to be said of it."""
    say(f"wrote {found.place}: {found.what}")
    for note in found.notes:
        say(f"note: {note}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """Where a job that was made goes, and how."""

    out: Path | None
    to: To
    dialect: Dialect = Dialect.PLAIN
    force: bool = False
    no_write: bool = False

    @classmethod
    def of(cls, asked: JobOut) -> "JobFiles":
        """Where a verb with `JobOut` writes; a place that is taken is refused."""
        only_one(asked, "out", "no_write")
        place = OutputPlace.at(asked.out, asked.force)
        out = None if place is None else place.path
        return cls(out=out, to=asked.to, dialect=asked.dialect, force=asked.force, no_write=asked.no_write)


def write_job(job: "Job", files: JobFiles, card: "Card | None" = None) -> dict[str, Any]:
    """Writes a job that was made, with its card if it has one, in full or not at all. What ASTRA-sim cannot run of its
    `.et` files is said, and given back for `--json`."""
    from etude.steps.asked.converting import convert, in_dialect

    out, to, dialect = files.out, files.to.value, files.dialect.value
    if out is None or files.no_write:
        _, problems = in_dialect(job, to, dialect)
        if not files.no_write:
            say("nothing written: `-o job/` writes the job")
    else:
        written = convert(job, out, to=to, dialect=dialect, card=card, force=files.force, progress=progress)
        problems = list(written.problems)
        tell(written)
    return {"astra_problems": problems} if files.to == To.ET else {}


def made_record(result: "tuple[Job, dict[str, Any]]") -> dict[str, Any]:
    """The numbers of a job that was made, and what ASTRA-sim cannot run of it."""
    from etude.model.totals import totals

    return dict(totals(result[0])) | result[1]


def made_figures(result: "tuple[Job, dict[str, Any]]") -> dict[str, Any]:
    """These numbers as people read them."""
    from etude.base.units import format_bytes, format_count

    found = made_record(result)
    sent = {name: format_bytes(size) for name, size in found["comm_bytes_by_type"].items()}
    return {
        "ranks": f"{found['ranks']:,}, {found['distinct_traces']} distinct programs",
        "nodes": f"{found['nodes']:,}",
        "operations": format_count(found["flops"]),
        "communication": sent or "none",
    }


# -- jobs that are generated -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JobMade(JobOut):
    """Parameters of every job that is generated."""

    name: str = text("name of the job; default: the model's", like="mine", panel="Output")
    memory: str = text(
        "refuse plans that need more memory: `80GB`, or a device or system whose memory counts: `h100`",
        like="80GB",
        panel="Machine",
    )


@dataclass(frozen=True, kw_only=True)
class MemoryOut:
    memory_out: str | None = figure(
        "out", "write memory over time: `.csv` or `.parquet`", None, like="memory.csv", panel="Output"
    )
    force: bool = switch("replace what is there", needs="out|memory_out", names=("-f",), panel="Output")


@dataclass(frozen=True, kw_only=True)
class LimitInput:
    system: str = text(
        "another name of --memory, of what is not simulated: a system whose device memory counts",
        names=("-s",),
        like="dgx-a100",
        panel="Machine",
        rare=True,
    )


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Memory that a rank may fill, and of what."""

    bytes: int
    system: str = ""

    @classmethod
    def of(cls, asked: Any) -> "MemoryLimit":
        from etude.machine import open_system

        if only_one(asked, "memory", "system") != "system":
            return cls(memory_limit(asked.memory))
        say(
            f"note: nothing is simulated: {spelled(asked, 'system')} is taken as a limit of memory, which is "
            f"{spelled(asked, 'memory')}"
        )
        return cls(open_system(asked.system).device.memory_bytes, asked.system)


def memory_place(asked: MemoryOut) -> OutputPlace | None:
    from etude.make.generate import memory_table

    if asked.memory_out is not None:
        memory_table.check_name(Path(asked.memory_out))
    return OutputPlace.at(asked.memory_out, asked.force)


def written(found: "Generated | ServedJob", given: Any) -> dict[str, Any]:
    """Writes the job, and its memory over time where `given.memory` says so."""
    from etude import __version__
    from etude.base.files import writing
    from etude.make.generate import card_of, memory_table

    if given.memory is not None:
        with writing(given.memory.path, force=given.memory.force) as file:
            memory_table.write(memory_table.memory_over_time(found), file)
    return write_job(found.job, given.files, card_of(found, made_by=f"etude {__version__}"))


def generated_record(result: Any) -> dict[str, Any]:
    """The numbers of a job that was generated, and what ASTRA-sim cannot run of it."""
    return dict(result[0].summary()) | result[1]
