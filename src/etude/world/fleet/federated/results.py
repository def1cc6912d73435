"""Results of federated rounds: the record of `etude federate --json`, and its tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from etude.base.shapes import names_in
from etude.kernels.arrays import F64, I64
from etude.world.fleet.federated.clients import Clients
from etude.world.fleet.federated.split import ClientSplit

COLUMNS: Final = names_in("""
    round_s asked answered down_bytes up_bytes last warmup_s bound_s delivered covered untrained server_busy_s
    server_wait_s
""")
WHOLE: Final = ("asked", "answered", "last")


@dataclass(frozen=True, slots=True, eq=False)
class Federated:
    """Rounds over clients: one row per round, and totals of each client."""

    clients: Clients
    columns: F64
    """[round, one of `COLUMNS`]"""
    drawn: I64
    """For each client: rounds in which it was drawn."""
    taken: I64
    """... and in which its answer was taken; in a swarm: in which it got everything."""
    there: I64
    """... and in which it was available."""
    labelled: bool
    parts: int
    split: ClientSplit | None = None
    late_s: F64 = field(default_factory=lambda: np.zeros(0))
    """Of each round, how much later it began than after the rounds before it alone; empty: never."""

    def __repr__(self) -> str:
        return f"Federated({len(self.columns):,} rounds of {len(self.clients):,} clients, {self.round_s.sum():.6g} s)"

    def column(self, name: str) -> NDArray[Any]:
        values = self.columns[:, COLUMNS.index(name)]
        return values.astype(np.int64) if name in WHOLE else values

    @property
    def round_s(self) -> F64:
        return self.column("round_s")

    def summary(self) -> dict[str, Any]:
        p50, p99 = np.percentile(self.round_s, [50, 99])
        bound, warm = self.column("bound_s"), self.column("warmup_s")
        swarm = bool(bound.any())
        return {
            "duration_s": float(self.round_s.sum()),
            "rounds": len(self.round_s),
            "round_s": {"mean": float(self.round_s.mean()), "p50": float(p50), "p99": float(p99),
                        "max": float(self.round_s.max())},
            "drawn": int(self.column("asked").sum()),
            "answered": int(self.column("answered").sum()),
            "by_deadline": int((self.column("last") < 0).sum()),
            "down_bytes": float(self.column("down_bytes").sum()),
            "up_bytes": float(self.column("up_bytes").sum()),
            "clients": len(self.clients),
            "available": float(self.there.mean() / len(self.round_s)),
            "never_taken": int((self.taken == 0).sum()),
            "participation": {"min": int(self.taken.min()), "mean": float(self.taken.mean()),
                              "max": int(self.taken.max()), "variance": float(self.taken.var())},
            "label_coverage": float(self.column("covered").mean()) if self.labelled else None,
            "share": float(self.clients.share.mean()),
            "untrained": float(self.column("untrained").mean()),
            "bound_s": float(bound.mean()) if swarm else None,
            "of_bound": float((bound / self.round_s).mean()) if swarm else None,
            "warmup_share": float((warm / self.round_s).mean()) if swarm else None,
            "delivered": float(self.column("delivered").mean()) if swarm else None,
        } | ({"split": self._split(self.split)} if self.split is not None else {})  # fmt: skip

    def _split(self, split: ClientSplit) -> dict[str, Any]:
        """`step_bytes`: activations up and gradients down of a step of the longest samples."""
        busy, wait, whole = self.column("server_busy_s"), self.column("server_wait_s"), float(self.round_s.sum())
        cuts, many = np.unique(split.cut, return_counts=True)
        return {
            "cuts": {str(cut): int(n) for cut, n in zip(cuts.tolist(), many.tolist(), strict=True)},
            "step_bytes": float(2 * split.step_bytes[:, -1].max()),
            "step_tokens": float(split.tokens[-1]),
            "adapter_bytes": float(split.adapter_bytes.mean()),
            "devices": split.devices,
            "busy_s": float(busy.sum()),
            "load": float(busy.sum() / (split.devices * whole)) if whole else 0.0,
            "wait_s": float(wait.sum() / max(int(self.column("answered").sum()), 1)),
        }

    def tables(self) -> dict[str, pa.Table]:
        start = np.concatenate([[0.0], np.cumsum(self.round_s)[:-1]])
        start = start + self.late_s if len(self.late_s) else start
        columns = {name: self.column(name) for name in COLUMNS[1:] if name != "last"}
        last = self.column("last")
        rounds = pa.table({
            "round": np.arange(len(last)), "start_s": start, "end_s": start + self.round_s, **columns,
            "last": pa.array([self.clients.name[k] if k >= 0 else None for k in last], pa.string()),
        })  # fmt: skip
        of = self.clients
        clients = pa.table({
            "name": pa.array(of.name, pa.string()), "step_s": of.step_s, "down_bytes_per_s": of.down_bytes_per_s,
            "up_bytes_per_s": of.up_bytes_per_s, "available": of.available, "share": of.share, "group": of.group,
            "label": of.label, "there": self.there, "drawn": self.drawn, "taken": self.taken,
            **({} if self.split is None else {
                "cut": self.split.cut, "forward_s": self.split.forward_s[:, -1],
                "backward_s": self.split.backward_s[:, -1], "server_s": self.split.server_s[:, -1],
                "adapter_bytes": self.split.adapter_bytes,
            }),
        })  # fmt: skip
        return {"rounds": rounds, "clients": clients}
