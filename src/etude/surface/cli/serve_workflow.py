"""`etude serve --workflow`: sessions of model calls and tools."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.surface.cli.output import emit, say

if TYPE_CHECKING:
    from etude.world.serve.workflow import Workflow


def sessions(path: str, out: Path | None, *, force: bool, json: bool, **options: Any) -> int:
    """Options are those of `serve_workflow`."""
    from etude.surface.api.workflows import serve_workflow

    found = serve_workflow(path, **options)
    for note in found.notes:
        say(f"note: {note}")
    if out is not None:
        found.write(out, force=force)
        say(f"wrote {out}")
    emit(found.figures, json=True) if json else _show(found.flow, found.figures)
    return 0


def _show(flow: "Workflow", found: dict[str, Any]) -> None:
    shown = {"sessions": f"{found['sessions']:,} of {found['calls']:,} calls in {found['duration_s']:,.1f} s"}
    times = {"latency_s": "a session", "sum_s": "sum of its calls", "critical_path_s": "its longest chain"}
    for key, what in times.items():
        shown[what] = ", ".join(f"{name} {value:.4g} s" for name, value in found[key].items())
    shown["largest speed-up from parallel calls"] = f"{found['bound']:.2f} times"
    for name, one in found["models"].items():
        part = one["cache_hit_tokens"] / max(one["prompt_tokens"], 1)
        shown[name] = f"{one['calls']:,} calls, {one['prompt_tokens']:,} tokens in, {part:.1%} of them cached"
    if flow.budget:
        shown["over the budget"] = f"{found['violations']} of {found['sessions']}"
        worst = ", ".join(f"{name.removesuffix('_s')} {ratio:.3g}" for name, ratio in found["worst"].items())
        shown["worst ratio to its limit"] = worst
        shown["cost, label"] = f"{found['cost']:.4g}, {found['label']:.4g}"
    emit(shown)
