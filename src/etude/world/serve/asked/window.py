"""`etude serve ... --window 60s:62s --job-out job/`: a moment of the stream as a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.outputs import OutputPlace
from etude.base.talk import say
from etude.steps.asked.job_out import JobFiles, To, write_job

if TYPE_CHECKING:
    from etude.world.serve.asked.text import TextServed


def write_window(found: TextServed, window: str, place: OutputPlace, *, costs: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the job; says, and gives back for `--json`, how far its simulated passes are from those of the loop."""
    import numpy as np

    from etude.machine import open_system
    from etude.world.serve.deployment import replica_plan
    from etude.world.serve.stored import job_of_window, node_level_ns, parse_window, passes_in

    made, served = found.service, found.points[0][1]
    moment = passes_in(served, made.groups, parse_window(window), **made.options)
    pool_of = [pool for pool in made.pools for _ in range(pool.count)]
    kinds = {(one.system or made.system, one.tp, one.ep) for one in (pool_of[i] for i in moment.replicas)}
    if len(kinds) > 1:
        raise UsageError(
            "replicas of different pools cannot be written as one job", hint=f"choose one of them: --window {window}@0"
        )
    named, tp, ep = next(iter(kinds))
    plan = replica_plan(made.network, tp, ep=ep, precision=costs["precision"])
    job = job_of_window(made.network, plan, moment, kv_dtype=costs["kv_dtype"])
    write_job(job, JobFiles(out=place.path, to=To.PARQUET, force=place.force))
    simulated = np.concatenate(node_level_ns(job, plan, moment, open_system(named)))
    looped = np.concatenate(moment.time_ns)
    off = np.abs(simulated / looped - 1.0)
    record = {
        "replicas": list(moment.replicas),
        "passes": len(looped),
        "nodes": job.nodes,
        "requests": sum(map(len, moment.requests)),
        "loop_s": float(looped.sum()) / 1e9,
        "node_level_s": float(simulated.sum()) / 1e9,
        "median_error": float(np.median(off)),
        "max_error": float(off.max()),
    }
    say(
        f"{len(looped):,} passes: {record['loop_s']:.4g} s in the loop, {record['node_level_s']:.4g} s simulated node "
        f"by node without the overheads of the stack; {record['median_error']:.2%} apart at the median, "
        f"{off.max():.1%} at most"
    )
    return record
