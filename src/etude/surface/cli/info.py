from typing import Any

from etude.surface.cli.app import LOOK, app
from etude.surface.cli.inputs import GroupFile, JobPath, MaxBytes, Workers, read_options
from etude.surface.cli.output import AsJson, emit


@app.command(rich_help_panel=LOOK)
def info(
    path: JobPath, groups: GroupFile = None, workers: Workers = 0, max_bytes: MaxBytes = None, json: AsJson = False
) -> None:
    """The content of a job: ranks, nodes by kind, bytes by collective, groups, span, producer"""
    from etude.capture import opening

    with read_options(path, groups, workers, max_bytes) as options:
        found = opening.summary(path, **options)
    emit(found if json else _for_people(found), json=json)


def _for_people(found: dict[str, Any]) -> dict[str, str]:
    from etude.base.units import format_bytes, format_count, format_time

    shown = {
        "job": found["name"],
        "ranks": f"{found['ranks']:,} of {found['world_size']:,}",
        "distinct traces": f"{found['distinct_traces']:,}",
        "nodes": f"{found['nodes']:,}",
    }
    shown |= {f"  {kind}": f"{count:,}" for kind, count in found["nodes_by_kind"].items()}
    shown["dependencies"] = f"{found['data_dependencies']:,} data, {found['ctrl_dependencies']:,} control"
    for row in found["collectives"]:
        shown[f"  {row['type']}"] = f"{row['count']:,} calls, {format_bytes(row['bytes'])} in"
    if found["p2p"]["sends"] or found["p2p"]["recvs"]:
        p2p = found["p2p"]
        sent = format_bytes(p2p["bytes_sent"])
        shown["point to point"] = f"{p2p['sends']:,} sends, {p2p['recvs']:,} receives, {sent} sent"
    sizes = ", ".join(f"{count:,} of {size}" for size, count in found["group_sizes"].items())
    shown["groups"] = f"{found['groups']:,}" + (f" ({sizes} ranks)" if sizes else "")
    if found["flops"] is not None:
        shown["operations"] = format_count(found["flops"])
    if found["duration_ns"] is not None:
        shown["node time"] = format_time(found["duration_ns"])
    shown["span"] = "no times recorded" if found["span_ns"] is None else format_time(found["span_ns"])
    shown["written by"] = ", ".join(f"{k} {v}" for k, v in found["written_by"].items()) or "unknown"
    return shown
