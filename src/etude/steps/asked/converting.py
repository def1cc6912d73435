"""A job in another format: what `etude.convert` and all commands that write a job have in common."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, text
from etude.base.files import writing
from etude.base.parameters import PYTHON, ask, refuse_unread
from etude.base.shapes import names_in
from etude.base.talk import Progress, quiet
from etude.base.units import counted
from etude.machine import open_system
from etude.model.fold import fold as folded
from etude.model.job import Job
from etude.model.schema import Kind
from etude.store import cards, chakra, columns
from etude.store import json as json_store

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.capture.ingest import runs
    from etude.model.card import Card

SIMULATORS: Final = ("astra", "flows", "simai")
"""Formats that simulators read; the others hold the job."""
ASTRA_FILES: Final = ("network.yml", "topology.txt", "README.md")
OURS: Final = names_in("""
    .et .et.gz .et.zst .json .json.gz .json.zst .parquet card.yaml system.yaml options.yaml
""")


class TargetFormat(StrEnum):
    PARQUET = "parquet"
    ET = "et"
    JSON = "json"
    ASTRA = "astra"
    FLOWS = "flows"
    SIMAI = "simai"


class Dialect(StrEnum):
    PLAIN = "plain"
    ASTRA = "astra"
    STORAGE = "storage"
    MEMORY = "memory"


class Compression(StrEnum):
    NONE = "none"
    GZ = "gz"
    ZST = "zst"


DIALECT_HELP: Final = (
    "`plain`: the job as it is. `astra`: files that ASTRA-sim can run: groups are numbers, all members of a "
    "collective have the size of the largest, and a copy is one operation. `storage`: reads of samples, "
    "batches and checkpoints as STORAGE, BATCH and CHECKPOINT nodes of newer Chakra; `memory`: the reverse"
)


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Parameters of how a job is written."""

    to: TargetFormat = figure(
        "choice",
        "the format to write. `astra`: a folder with all files that ASTRA-sim reads. `flows`: a table of the "
        "messages that collectives consist of, for packet simulators, as CSV or Parquet. `simai`: SimAI's text "
        "workload",
        TargetFormat.ET,
    )
    system: str = text(
        "the system that the written files simulate (`astra`, `flows`), or whose compute times they have (`simai`)",
        needs="to=astra|to=flows|to=simai",
        names=("-s",),
        like="dgx-h100",
    )
    dialect: Dialect = figure("choice", DIALECT_HELP, Dialect.PLAIN, needs="to=et|to=json")
    name: str = text(
        "name of the job: `NAME.{rank}.et`; by default the name of the input",
        needs="to=et|to=json|to=parquet|to=astra",
        like="step",
    )
    compress: Compression = figure(
        "choice", "compress `.et` and JSON files", Compression.NONE, needs="to=et|to=json", panel="What is written"
    )
    fold: bool = figure(
        "flag",
        "let ranks share traces in Parquet; no information is lost",
        True,
        needs="to=parquet",
        panel="What is written",
    )


@dataclass(frozen=True, slots=True)
class Conversion:
    """How a job is written."""

    to: TargetFormat
    system: str = ""
    name: str = ""
    dialect: Dialect = Dialect.PLAIN
    compress: Compression = Compression.NONE
    fold: bool = True

    @classmethod
    def of(cls, asked: ConvertOptions) -> Conversion:
        """What the format reads, and nothing else."""
        to = asked.to
        if to in SIMULATORS:
            if not asked.system and to != TargetFormat.SIMAI:
                raise UsageError(f"`--to {to}` needs a system", hint="--system dgx-h100; `etude systems` lists them")
            return cls(to, asked.system, asked.name if to == TargetFormat.ASTRA else "")
        if to == TargetFormat.PARQUET:
            return cls(to, name=asked.name, fold=asked.fold)
        return cls(to, name=asked.name, dialect=asked.dialect, compress=asked.compress)

    def times(self) -> runs.WantedTimes:
        """Those of a recording that may be written: a format that cannot say that they are an estimate has none."""
        from etude.capture.ingest import runs

        return runs.WantedTimes(estimate=self.to == TargetFormat.PARQUET)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenJob:
    """Where a job was written, and what is to be said of it; a path for whatever takes one."""

    place: Path
    what: str
    """`8 ranks, 4,896 nodes`"""
    notes: tuple[str, ...] = ()
    left_behind: tuple[str, ...] = ()
    """What the format has no place for."""
    problems: tuple[str, ...] = ()
    """What ASTRA-sim cannot run of `.et` files."""

    def __fspath__(self) -> str:
        return str(self.place)


def convert(
    job: Job | str | os.PathLike[str], out: str | os.PathLike[str], *, to: str = "parquet", dialect: str = "plain",
    system: str = "", name: str = "", compress: str = "none", fold: bool = True, card: Card | None = None,
    force: bool = False, progress: Progress = quiet,
) -> WrittenJob:  # fmt: skip
    """Writes a job as a folder of `parquet`, `et` or `json`, or as what `astra`, `flows` or `simai` read, in full or
    not at all, and says where it is.

    etude.convert(job, "job.parquet", to="parquet")
    """
    from etude.capture.opening import open as open_job

    given = {"system": system, "dialect": dialect, "name": name, "compress": compress, "fold": fold}
    usual = {"system": "", "dialect": "plain", "name": "", "compress": "none", "fold": True}
    said = {key: value for key, value in given.items() if value != usual[key]}
    asked = ask(ConvertOptions, {"to": to, **said}, PYTHON, verb="convert")
    how = Conversion.of(asked)
    refuse_unread(asked)
    place, source = Path(out), None if isinstance(job, Job) else Path(job)
    check_place(place, force, source)
    made = job if isinstance(job, Job) else open_job(job, times=how.times())
    card = card or (cards.find(source) if source is not None else None)
    return write_as(made, place, how, card=card, force=force, progress=progress)


def write_as(
    job: Job, place: Path, how: Conversion, *, card: Card | None = None, force: bool = False,
    progress: Progress = quiet,
) -> WrittenJob:  # fmt: skip
    """Writes a job in a format, in full or not at all."""
    job = job.replace(name=how.name) if how.name else job
    if how.to in SIMULATORS:
        write = {TargetFormat.ASTRA: _astra, TargetFormat.FLOWS: _flows, TargetFormat.SIMAI: _simai}[how.to]
        return write(job, place, how.system, force, progress)
    behind = chakra.left_behind(job) if how.to != TargetFormat.PARQUET else []
    job, problems = in_dialect(job, how.to, how.dialect)
    with writing(place, force=force) as folder, progress(f"writing {place}", len(job)) as advance:
        folder.mkdir()
        packed = "" if how.compress == Compression.NONE else f".{how.compress}"
        write_files(job, folder, how.to, packed, advance, fold=how.fold)
        if card is not None:
            cards.write(card, folder / cards.NAME)
    notes = tuple(_cannot_run(problems, how.dialect))
    return WrittenJob(place=place, what=_size(job), notes=notes, left_behind=tuple(behind), problems=tuple(problems))


def _size(job: Job) -> str:
    return f"{counted(len(job), 'rank')}, {counted(job.nodes, 'node')}"


def write_files(
    job: Job, folder: Path, to: str, packed: str = "", advance: Callable[[int], None] = lambda amount: None,
    *, fold: bool = True,
) -> None:  # fmt: skip
    """The files of a job, in an existing folder; `packed`: the ending of how they are compressed."""
    if to == "et":
        chakra.write_job(job, folder, suffix=f".et{packed}", advance=advance)
    elif to == "json":
        json_store.write_job(job, folder, suffix=f".json{packed}", advance=advance)
    else:
        columns.write_job(folded(job) if fold else job, folder)


def in_dialect(job: Job, to: str, dialect: str) -> tuple[Job, list[str]]:
    """The job as its files are to have it, and what ASTRA-sim cannot run of them. The one place for dialects."""
    if to == "parquet":
        if dialect != "plain":
            hint = f"`--to et --dialect {dialect}` writes one file per rank"
            raise UsageError("a Parquet folder holds the job as it is, without a dialect", hint=hint)
        return job, []
    from etude.make.transform.dialects import as_memory, as_storage, astra_problems, for_astra

    if dialect == "storage":
        return as_storage(job), []
    left, before = 0, job if dialect == "astra" else None
    if dialect in ("astra", "memory"):
        job, left = as_memory(job)
    if dialect == "astra":
        job = for_astra(job)
    told = [f"{left:,} storage nodes are not reads or writes of known size and are not changed"] if left else []
    return job, [*told, *(astra_problems(job, before) if to == "et" else [])]


def _cannot_run(problems: list[str], dialect: str) -> list[str]:
    """What ASTRA-sim cannot run, and the way out; of files in its dialect, what it still does with them."""
    if dialect == "astra":
        return [f"what ASTRA-sim does with these files: {'; '.join(problems)}"] if problems else []
    way_out = "; `--dialect astra` writes files that it can run" if dialect == "plain" else ""
    return [f"ASTRA-sim cannot run this job as it is: {'; '.join(problems)}{way_out}"] if problems else []


def check_place(out: Path, force: bool, source: Path | None = None) -> None:
    """`--force` replaces a folder that holds nothing but traces, and never the neighbours of what is read."""
    if not force or not out.is_dir():
        return
    target = out.resolve()
    if source is not None and source.resolve() != target and target in source.resolve().parents:
        raise UsageError("contains the input, which would be lost", where=str(out), hint="give another folder")
    known = (*OURS, *ASTRA_FILES) if (out / "network.yml").is_file() else OURS
    others = [entry.name for entry in out.iterdir() if entry.is_dir() or not entry.name.endswith(known)]
    if others:
        hint = "--force only replaces a folder of traces; give another name, or remove it yourself"
        raise UsageError(f"contains files that Etude did not write: {others[0]}", where=str(out), hint=hint)


def _astra(job: Job, out: Path, system: str, force: bool, progress: Progress) -> WrittenJob:
    """A folder with all that ASTRA-sim's binaries read."""
    from etude.make.transform.dialects import astra_files, astra_refusals

    machine = open_system(system)
    job, problems = in_dialect(job, "et", "astra")
    if len(job) < job.world_size:
        hint = "ASTRA-sim needs a file for every rank; `etude edit --scale` adds ranks"
        raise UsageError(f"{len(job):,} of {job.world_size:,} ranks are present", hint=hint)
    if refused := astra_refusals(job):
        hint = "`etude convert --to et --dialect astra` writes the files anyway"
        raise UsageError(f"ASTRA-sim cannot run it: {'; '.join(refused)}", hint=hint)
    files = astra_files(machine, len(job), name=job.name, groups=len(job.groups) > 0, roofline=not _has_times(job))
    with writing(out, force=force) as folder, progress(f"writing {out}", len(job)) as advance:
        folder.mkdir()
        chakra.write_job(job, folder, advance=advance)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    notes = tuple(_cannot_run(problems, "astra"))
    return WrittenJob(place=out, what=f"{_size(job)}, and {', '.join(files)}", notes=notes, problems=tuple(problems))


def _has_times(job: Job) -> bool:
    """Does some compute of a device say how long it takes?"""
    return any(
        bool(((trace.kind == Kind.COMP) & (trace.cpu != 1) & (trace.duration_ns > 0)).any()) for trace in job.traces
    )


def _flows(job: Job, out: Path, system: str, force: bool, progress: Progress) -> WrittenJob:
    """A table of messages: CSV, whose `after` has numbers with blanks between them, or Parquet."""
    from etude.run.simulate.flows import flow_table

    if out.suffix not in (".csv", ".parquet"):
        raise UsageError(f"flows cannot be written as `{out.suffix}`", where=str(out), hint="flows.csv, flows.parquet")
    with progress("simulating"):
        found = flow_table(job, open_system(system).for_ranks(job.world_size))
    with writing(out, force=force) as path, progress(f"writing {out}"):
        _write_table(found.table, path)
    sent = int(found.table["bytes"].to_numpy().sum())
    return WrittenJob(place=out, what=f"{len(found.table):,} flows, {sent:,} bytes", notes=tuple(found.notes))


def _simai(job: Job, out: Path, system: str, force: bool, progress: Progress) -> WrittenJob:
    """SimAI's text workload; compute that has no time is priced on a system, if one is given."""
    from etude.make.transform.dialects import simai_text

    took_ns = None
    if system:
        from etude.run.simulate import simulate

        timing = simulate(job, open_system(system).for_ranks(job.world_size)).timing
        begin_ns, end_ns = timing.block(0)
        took_ns = end_ns - begin_ns
    text = simai_text(job, took_ns)
    with writing(out, force=force) as path:
        path.write_text(text, encoding="utf-8")
    note = "the text has no dependencies: collectives run one after another, gradients after all compute"
    return WrittenJob(place=out, what=f"{text.count(chr(10)) - 2:,} lines for {job.world_size:,} ranks", notes=(note,))


def _write_table(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, path, compression="zstd")
        return
    from pyarrow import csv

    at = table.schema.get_field_index("after")
    texts = [" ".join(map(str, some)) for some in table["after"].to_pylist()]
    csv.write_csv(table.set_column(at, "after", [texts]), path)
