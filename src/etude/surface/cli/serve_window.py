"""`etude serve ... --window 60s:62s --job-out job/`: a moment of the stream as a job."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.surface.cli.job_out import Files, To, write_job
from etude.surface.cli.output import say

if TYPE_CHECKING:
    from etude.make.generate.model import Model
    from etude.world.serve import Served
    from etude.world.serve.pools import Pool


def write_window(
    served: "Served", model: "Model", pools: "Sequence[Pool]", window: str, given: dict[str, Any], out: Path,
    *, system: str, precision: str, kv_dtype: str, force: bool,
) -> dict[str, Any]:  # fmt: skip
    """Writes the job; says, and gives back for `--json`, how far its simulated passes are from those of the loop."""
    import numpy as np

    from etude.machine import open_system
    from etude.world.serve import replica_plan
    from etude.world.serve.stored import job_of_window, node_level_ns, parse_window, passes_in

    moment = passes_in(served, given.pop("groups"), parse_window(window), **given)
    pool_of = [pool for pool in pools for _ in range(pool.count)]
    kinds = {(one.system or system, one.tp, one.ep) for one in (pool_of[i] for i in moment.replicas)}
    if len(kinds) > 1:
        raise UsageError(
            "replicas of different pools cannot be written as one job", hint=f"choose one of them: --window {window}@0"
        )
    named, tp, ep = next(iter(kinds))
    plan = replica_plan(model, tp, ep=ep, precision=precision)
    job = job_of_window(model, plan, moment, kv_dtype=kv_dtype)
    write_job(job, Files(out=out, to=To.PARQUET, force=force))
    simulated = np.concatenate(node_level_ns(job, plan, moment, open_system(named)))
    looped = np.concatenate(moment.time_ns)
    off = np.abs(simulated / looped - 1.0)
    found = {
        "replicas": list(moment.replicas), "passes": len(looped), "nodes": job.nodes,
        "requests": sum(map(len, moment.requests)), "loop_s": float(looped.sum()) / 1e9,
        "node_level_s": float(simulated.sum()) / 1e9, "median_error": float(np.median(off)),
        "max_error": float(off.max()),
    }  # fmt: skip
    say(
        f"{len(looped):,} passes: {found['loop_s']:.4g} s in the loop, {found['node_level_s']:.4g} s simulated node by "
        f"node without the overheads of the stack; {found['median_error']:.2%} apart at the median, {off.max():.1%} "
        "at most"
    )
    return found
