"""Jobs for the tests of the stores: real ones by folder, one of each sort by hand."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from etude.model.build import TraceBuilder, job_of
from etude.model.job import Job
from etude.model.schema import Collective, Kind, ValueKind
from etude.model.timing import Origin, Timing
from etude.store import chakra


def encoded(job: Job) -> list[bytes]:
    """Every rank as the bytes of its `.et` file."""
    out = []
    for rank in job.ranks.tolist():
        found, id_base, tag_base = chakra.for_rank(job, rank)
        out.append(bytes(chakra.encode(found, id_base=id_base, tag_base=tag_base)))
    return out


def real_jobs(shared: Path, *parts: str) -> Iterator[tuple[str, Job]]:
    """Every job of `.et` files under these folders of the reference data."""
    seen: set[Path] = set()
    for part in parts:
        for path in sorted([*(shared / part).rglob("*.et"), *(shared / part).rglob("*.et.gz")]):
            prefix = path.parent / re.sub(r"(\.\d+)?\.et(\.gz)?$", "", path.name)
            if prefix not in seen:
                seen.add(prefix)
                ranked = re.search(r"\.\d+\.et", path.name)
                yield str(prefix.relative_to(shared)), chakra.read_job(prefix if ranked else path)


def archived_job(archive: Path, folder: Path) -> Job:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    first = next(folder.rglob("*.0.et"))
    return chakra.read_job(first.parent / first.name.removesuffix(".0.et"))


def tiny_job() -> Job:
    """Two ranks: rank 0 sends to rank 1 and both reduce; known by heart in the tests of SQL."""
    builders = []
    for rank in range(2):
        b = TraceBuilder()
        gemm = b.add(
            Kind.COMP, "gemm", duration_ns=1500, flops=10 + rank, cpu=0, stream=7, module="layer.0",
            attrs={"ratio": (ValueKind.DOUBLE, 0.5), "big": (ValueKind.UINT64, 2**64 - 1),
                   "dims": (ValueKind.INT32_LIST, [1, -2])},
        )  # fmt: skip
        if rank == 0:
            peer = b.add(Kind.SEND, "send", data=[gemm], src=0, dst=1, tag=5, in_bytes=64)
        else:
            peer = b.add(Kind.RECV, "recv", data=[gemm], src=0, dst=1, tag=5, in_bytes=64)
        b.add(
            Kind.COLL,
            "grads",
            data=[gemm],
            ctrl=[peer, gemm],
            collective=Collective.ALL_REDUCE,
            in_bytes=4096,
            group="dp",
        )
        builders.append(b)
    return job_of("tiny", builders, {"dp": [1, 0]})


def with_values(job: Job) -> Job:
    """Every second rank with durations of its own, the first of them with sizes too."""
    values = {}
    for i, rank in enumerate(job.ranks.tolist()[::2]):
        n = len(job.trace(rank))
        values[rank] = {"duration_ns": np.arange(n, dtype=np.int64) * 1000}
        if not i:
            values[rank]["in_bytes"] = np.where(np.arange(n) % 2, np.int64(7), np.iinfo(np.int64).min)
    return job.replace(values=values)


def with_timing(job: Job) -> Job:
    """Times as a simulator gives them: a block a trace."""
    starts = tuple(np.arange(len(t), dtype=np.int64) * 1000 for t in job.traces)
    return job.replace(
        timing=Timing(
            origin=Origin.SIMULATED,
            start_ns=starts,
            end_ns=tuple(s + 1234 for s in starts),
            block_of=job.trace_of.copy(),
            clock_offset_ns=np.arange(len(job), dtype=np.int64),
            aligned=True,
        )
    )
