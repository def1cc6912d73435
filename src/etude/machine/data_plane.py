"""The data input of a system: the store, its producers, and the host's part."""

from __future__ import annotations

from dataclasses import dataclass

from etude.base.errors import ClusterError
from etude.base.figures import figure


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlane:
    """Defaults of the edit `data`. A rate of 0 means no limit."""

    read_bytes_per_s: float = figure("bandwidth", "read rate of one rank; 0: no limit", 0.0)
    store_bytes_per_s: float = figure("bandwidth", "read rate of all ranks together; 0: no limit", 0.0)
    decode_bytes_per_s: float = figure("bandwidth", "decoding rate of samples, on one thread; 0: no limit", 0.0)
    workers: int = figure("count", "threads of a rank that assemble batches", 1)
    work_bytes_per_s: float = figure("bandwidth", "rate of one worker; 0: no limit", 0.0)
    queue: int = figure("count", "batches prepared ahead", 2)
    producers: int = figure("count", "machines that prepare batches for all ranks; 0: ranks read samples", 0)
    make_bytes_per_s: float = figure("bandwidth", "rate of samples of one producer; 0: no limit", 0.0)
    commit_ns: float = figure("time", "time to commit a batch of a producer, until readers see it", 0.0)
    commit_grows_ns: float = figure("time", "growth of the commit time from one commit to the next", 0.0)
    commits: str = figure(
        "text", "one commit per batch (`fixed`), or larger commits as they take longer (`adaptive`)", "fixed"
    )
    reclaim: int = figure("count", "batches between checkpoints of the manifest; 0: no checkpoints", 0)
    visible: str = figure("text", "`rank` by rank, or to `all` ranks at once", "rank")

    def __post_init__(self) -> None:
        if self.visible not in ("rank", "all"):
            raise ClusterError(f"visible: unknown value `{self.visible}`", hint="known: rank, all")
        if self.commits not in ("fixed", "adaptive"):
            raise ClusterError(f"commits: unknown value `{self.commits}`", hint="known: fixed, adaptive")
        made = self.make_bytes_per_s or self.commit_ns or self.commit_grows_ns
        if not self.producers and (made or self.reclaim or self.commits != "fixed"):
            raise ClusterError("batches are committed, but there is no producer", hint="producers: 8")
