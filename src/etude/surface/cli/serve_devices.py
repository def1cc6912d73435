"""`etude serve --workflow --devices`: calls of workflows placed on devices of several kinds."""

from collections.abc import Mapping
from typing import Any

from etude.base.errors import UsageError
from etude.surface.cli.output import emit

SHOWN = ("place", "makespan_s", "makespan_over_roundrobin", "p95_s", "p95_over_roundrobin", "loads", "found_tokens")


def on_devices(
    workflow: str, devices: str, place: str, others: Mapping[str, Any], *, seed: int, stack: str, json: bool
) -> int:
    """Round robin always runs too, and comes first."""
    from etude.surface.api.workflows import place_workflows

    if wrong := [name for name, value in others.items() if value]:
        raise UsageError(f"{wrong[0]} cannot be combined with --devices", hint="leave it out")
    names = [name.strip() for name in place.split(",") if name.strip()]
    rows = place_workflows(workflow, devices, names, seed=seed, stack=stack)
    if json:
        last = next(row for row in rows if row["place"] == names[-1]) if names else rows[-1]
        emit(last | {"places": {row["place"]: row for row in rows}}, json=True)
    else:
        emit([{name: row[name] for name in SHOWN} for row in rows])
    return 0
