"""How long operations and transfers of a simulated network took: their tails, from its statistics of links."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from etude.kernels.arrays import I64

__all__ = ["completions", "link_sums"]


def _of_packets(stats: Mapping[str, pa.Table]) -> bool:
    """Whether these statistics (`links`, `visits`, `operations`) are of packets, with a visit for each transfer."""
    return "queue_bytes" in stats["links"].column_names


def completions(stats: Mapping[str, pa.Table]) -> pa.Table:
    """One row for each kind of operation and size, and with packets one for the transfers of each: count, p50_ns,
    p90_ns, p99_ns, longest_ns. An operation lasts from when its last member came."""
    operations, visits = stats["operations"], stats["visits"]
    names, code = np.unique(operations["what"].to_numpy(zero_copy_only=False).astype(str), return_inverse=True)
    kind = np.stack((code.reshape(-1), operations["size_bytes"].to_numpy()), axis=1)
    parts = [("operation", kind, _lasted(operations))]
    if _of_packets(stats):
        parts.append(("transfer", kind[visits["operation"].to_numpy()], _lasted(visits)))
    rows = []
    for unit, of, ns in parts:
        kinds, which = np.unique(of, axis=0, return_inverse=True)
        for number, (what, size_bytes) in enumerate(kinds.tolist()):
            mine = ns[which.reshape(-1) == number]
            tail = np.percentile(mine, [50, 90, 99], method="inverted_cdf").astype(np.int64).tolist()
            rows.append((unit, str(names[what]), size_bytes, len(mine), *tail, int(mine.max())))
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_COLUMNS)
    return pa.table({n: pa.array(list(c), t) for (n, t), c in zip(_COLUMNS.items(), columns, strict=True)})


_COLUMNS = {"of": pa.string(), "what": pa.string()} | dict.fromkeys(
    ("size_bytes", "count", "p50_ns", "p90_ns", "p99_ns", "longest_ns"), pa.int64()
)


def _lasted(table: pa.Table) -> I64:
    return np.asarray(table["end_ns"].to_numpy() - table["begin_ns"].to_numpy(), np.int64)


def link_sums(links: pa.Table) -> pa.Table:
    """One row for each link: its mean utilisation, and with packets how long its queue was and what happened there. The
    longest queues first, or the links that were used most."""
    names, which = np.unique(links["link"].to_numpy(zero_copy_only=False).astype(str), return_inverse=True)
    which, many = which.reshape(-1), len(names)
    length = (links["to_ns"].to_numpy() - links["from_ns"].to_numpy()).astype(np.float64)
    whole = np.maximum(np.bincount(which, length, many), 1.0)

    def mean(name: str) -> np.ndarray:
        return np.asarray(np.bincount(which, links[name].to_numpy() * length, many) / whole)

    found = {"link": names, "utilisation": mean("utilisation")}
    order = -found["utilisation"]
    if "queue_bytes" in links.column_names:
        longest = np.zeros(many, np.int64)
        np.maximum.at(longest, which, links["most_queue_bytes"].to_numpy())
        found |= {"queue_bytes": mean("queue_bytes"), "most_queue_bytes": longest}
        for name in ("marks", "cut", "dropped", "pauses"):
            found[name] = np.bincount(which, links[name].to_numpy(), many).astype(np.int64)
        found["paused"] = mean("paused")
        order = -longest
    rows = np.lexsort((names, -found["utilisation"], order))
    return pa.table({name: pa.array(column[rows].tolist()) for name, column in found.items()})
