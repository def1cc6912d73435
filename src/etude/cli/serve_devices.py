"""`etude serve --workflow --devices`: calls of workflows placed on devices of several kinds."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from etude.cli.output import emit
from etude.errors import UsageError

REFERENCE = "roundrobin"
SHOWN = ("place", "makespan_s", "makespan_over_roundrobin", "p95_s", "p95_over_roundrobin", "loads", "found_tokens")


def on_devices(
    workflow: str, devices: str, place: str, others: Mapping[str, Any], *, seed: int, stack: str, json: bool
) -> int:
    """Round robin always runs too, and comes first."""
    from etude.serve.devices import beside, costs_on, open_devices, placed_summary, run_placed, sessions_of

    if wrong := [name for name, value in others.items() if value]:
        raise UsageError(f"{wrong[0]} cannot be combined with --devices", hint="leave it out")
    flows = [_opened(path) for path in _files(workflow)]
    on = open_devices(devices)
    models = sorted({role.model for flow in flows for role in flow.models.values()})
    if not models:
        raise UsageError("no model is called, so there is nothing to place", where=workflow)
    sessions = sessions_of(flows, on, costs_on(on, models, stack=stack), seed=seed)
    names = [name.strip() for name in place.split(",") if name.strip()] or [REFERENCE, "heft", "reuse", "future:2"]
    every = dict.fromkeys([REFERENCE, *names])
    rows = beside([placed_summary(run_placed(sessions, flows, _hook(name)), name) for name in every])
    if json:
        last = next(row for row in rows if row["place"] == names[-1])
        emit(last | {"places": {row["place"]: row for row in rows}}, json=True)
    else:
        emit([{name: row[name] for name in SHOWN} for row in rows])
    return 0


def _files(text: str) -> list[str]:
    """Workflows by name, and files that are like a pattern; several with commas."""
    if not text:
        raise UsageError("--devices places calls of workflows", hint='--workflow "dags/*.yaml"')
    found: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if any(sign in part for sign in "*?["):
            base = Path(part)
            like = sorted(str(path) for path in Path(base.anchor or ".").glob(str(base.relative_to(base.anchor))))
            if not like:
                raise UsageError(f"no file matches `{part}`", where="--workflow")
            found += like
        else:
            found.append(part)
    return found


def _opened(path: str) -> Any:
    from etude.serve.workflow import open_workflow

    return open_workflow(path)


def _hook(text: str) -> str | Callable[..., Any]:
    from etude.serve.pools import function_of

    return function_of(text) if text.partition(":")[0].endswith(".py") else text
