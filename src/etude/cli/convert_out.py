"""`etude convert --to astra`, `--to flows` and `--to simai`: what other simulators read."""

from pathlib import Path
from typing import TYPE_CHECKING

from etude.cli.job_out import Dialect, To, in_dialect, tell
from etude.cli.output import progress, say
from etude.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.model.job import Job


def write_astra(job: "Job", out: Path, system: str, force: bool) -> None:
    """A folder with all that ASTRA-sim's binaries read."""
    from etude.files import writing
    from etude.machine import open_system
    from etude.store import chakra
    from etude.transform.dialects import astra_files, astra_refusals

    machine = open_system(system)
    job, problems = in_dialect(job, To.ET, Dialect.ASTRA)
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
    say(f"wrote {out}: {len(job):,} ranks, {job.nodes:,} nodes, and {', '.join(files)}")
    tell(problems, Dialect.ASTRA)


def _has_times(job: "Job") -> bool:
    """Does some compute of a device say how long it takes?"""
    from etude.model.schema import Kind

    return any(
        bool(((trace.kind == Kind.COMP) & (trace.cpu != 1) & (trace.duration_ns > 0)).any()) for trace in job.traces
    )


def write_flows(job: "Job", out: Path, system: str, force: bool) -> None:
    """A table of messages: CSV, whose `after` has numbers with blanks between them, or Parquet."""
    from etude.files import writing
    from etude.machine import open_system
    from etude.simulate.flows import flow_table

    if out.suffix not in (".csv", ".parquet"):
        raise UsageError(f"flows cannot be written as `{out.suffix}`", where=str(out), hint="flows.csv, flows.parquet")
    with progress("simulating"):
        found = flow_table(job, open_system(system).for_ranks(job.world_size))
    with writing(out, force=force) as path, progress(f"writing {out}"):
        _write_table(found.table, path)
    for note in found.notes:
        say(f"note: {note}")
    sent = int(found.table["bytes"].to_numpy().sum())
    say(f"wrote {out}: {len(found.table):,} flows, {sent:,} bytes")


def write_simai(job: "Job", out: Path, system: str, force: bool) -> None:
    """SimAI's text workload; compute that has no time is priced on a system, if one is given."""
    from etude.files import writing
    from etude.transform.dialects import simai_text

    took_ns = None
    if system:
        from etude.machine import open_system
        from etude.simulate import simulate

        timing = simulate(job, open_system(system).for_ranks(job.world_size)).timing
        begin_ns, end_ns = timing.block(0)
        took_ns = end_ns - begin_ns
    text = simai_text(job, took_ns)
    with writing(out, force=force) as path:
        path.write_text(text, encoding="utf-8")
    say(f"wrote {out}: {text.count(chr(10)) - 2:,} lines for {job.world_size:,} ranks")
    say("note: the text has no dependencies: collectives run one after another, gradients after all compute")


def _write_table(table: "pa.Table", path: Path) -> None:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        pq.write_table(table, path, compression="zstd")
        return
    from pyarrow import csv

    at = table.schema.get_field_index("after")
    texts = [" ".join(map(str, some)) for some in table["after"].to_pylist()]
    csv.write_csv(table.set_column(at, "after", [texts]), path)
