"""What of a recorded rank was linked, and what was not, with the reason."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.capture.ingest.graph import CausalGraph
from etude.capture.link.host import HostTrace
from etude.kernels.arrays import I64
from etude.model.schema import Kind


def coverage(host: HostTrace | None, found: CausalGraph, host_row: I64) -> dict[str, Any]:
    """The coverage report: what was linked, and what was not, with the reason."""
    activities = found.device
    operators = ~found.host.is_call
    tied = activities.operator >= 0
    unmatched: list[dict[str, Any]] = []
    if host is not None:
        is_known = np.append(host_row >= 0, False)
        foreign = tied & ~is_known[activities.operator]
        outside = foreign & _outside(found.host.start_ns, host_row)[activities.operator]
        unmatched += _reasons(
            ("device activity: launched outside of the time that the host trace covers", int(outside.sum())),
            ("device activity: its operator is not in the host trace", int((foreign & ~outside).sum())),
        )
        tied &= ~foreign
        is_timed = np.zeros(len(host) + 1, np.bool_)
        is_timed[host_row] = True
        timed = int(is_timed[:-1].sum())
        roots = host.is_process_root | host.is_thread_root
        group = np.array(["process_group:init" in name for name in host.names] + [False])[host.name]
        rest = len(host) - timed - int(roots.sum()) - int(group.sum())
        unmatched += _reasons(
            ("host operator: the observer's own node of a process or thread, which has no time", int(roots.sum())),
            ("host operator: names process groups, which takes no time", int(group.sum())),
            ("host operator: no event of the device trace has its record-function id", rest),
        )
    no_call = (activities.call < 0) & (activities.operator < 0)
    no_operator = (activities.call >= 0) & (activities.operator < 0)
    unmatched += _reasons(
        ("device activity: neither its launch nor its operator is in the trace", int(no_call.sum())),
        ("device activity: launched outside of any operator", int(no_operator.sum())),
        ("dependency: contradicted by the recorded times", found.contradicted),
    )
    table = found.comms.table
    kinds = table.kind[found.row_of_comm >= 0]
    unmatched += _reasons(("communication: no kernel or message in the trace belongs to it", len(table) - len(kinds)))
    return {
        "device_ops": len(activities),
        "device_ops_linked": int(tied.sum()),
        "host_ops": len(host) if host is not None else int(operators.sum()),
        "host_ops_timed": timed if host is not None else int(operators.sum()),
        "collectives": int((kinds == Kind.COLL).sum()),
        "p2p": int((kinds != Kind.COLL).sum()),
        "unmatched": unmatched,
        "span_ns": int(found.end_ns.max() - found.start_ns.min()),
        "nodes": len(found),
        "dependencies": len(found.edge),
    }


def _outside(start_ns: I64, host_row: I64) -> NDArray[np.bool_]:
    """Events before the first or after the last of the host trace; with one extra entry, for none."""
    covered = start_ns[host_row >= 0]
    if not len(covered):
        return np.ones(len(start_ns) + 1, np.bool_)
    return np.append((start_ns < covered.min()) | (start_ns > covered.max()), False)


def _reasons(*counted: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"reason": reason, "count": count} for reason, count in counted if count]
