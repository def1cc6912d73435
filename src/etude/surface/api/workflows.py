"""Sessions of model calls and tools: on replicas of their models, or each call placed on devices of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from etude.surface.api.given import built, unlike
from etude.surface.api.serving import engine_given
from etude.world.serve import Engine
from etude.world.serve.asked import devices as on_devices
from etude.world.serve.asked import workflow as flows
from etude.world.serve.stored import write_workflow

if TYPE_CHECKING:
    from etude.world.serve.workflow import Workflow


@dataclass(frozen=True, slots=True, eq=False)
class Sessions:
    """Sessions of a workflow that ran; `.summary()` has their figures."""

    flow: Workflow
    ran: Any
    figures: dict[str, Any]
    asked: dict[str, Any]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Sessions({self.figures['sessions']:,} of {self.figures['calls']:,} calls)"

    def summary(self) -> dict[str, Any]:
        """All figures, as `etude serve workflow --json` prints them."""
        return dict(self.figures)

    def write(self, folder: str | PathLike[str], *, force: bool = False) -> None:
        """A folder for `etude query`: sessions and tasks."""
        write_workflow(self.ran, self.figures | {"asked": self.asked}, folder, force=force)


def serve_workflow(
    path: str | PathLike[str], system: str = "", *, models: str = "", slo: str = "", replicas: int = 1,
    router: str = "least", order: str = "data", choose: str | Callable[..., Any] = "first",
    place: str | Callable[..., Any] = "", engine: Engine | None = None, stack: str = "vllm", seed: int = 0,
) -> Sessions:  # fmt: skip
    """Sessions of a workflow (a file, or `swe_agent`) on replicas of its models: every session and its calls.

    etude.extend.serve_workflow("swe_agent", "dgx-h100", models="llama3-8b,gpt2").summary()
    """
    said = {
        "workflow": path, "system": system, "models": models, "slo": slo, "replicas": replicas, "router": router,
        "order": order, "choose": choose, "place": place, "stack": stack, "seed": seed,
    }  # fmt: skip
    given = engine_given(engine) | unlike(flows.WorkflowInput, said)
    made, asked = built(flows.WorkflowInput, flows.flow_serving, given, "serve workflow")
    found = made.run()
    return Sessions(found.flow, found.ran, found.figures, flows.said_of(asked, made), found.notes)


def place_workflows(
    workflows: str | Sequence[str], devices: str | PathLike[str], places: Sequence[str | Callable[..., Any]] = (), *,
    seed: int = 0, stack: str = "vllm",
) -> list[dict[str, Any]]:  # fmt: skip
    """Calls of workflows, one at a time on each device of a file of several kinds: figures of each placement, round
    robin first. Workflows are names, files or patterns (`dags/*.yaml`).

    etude.extend.place_workflows("dags/*.yaml", "devices.yaml", ["heft", "future:4"])
    """
    text = workflows if isinstance(workflows, str) else ",".join(map(fspath, workflows))
    given = {"workflow": text, "devices": devices, "place": tuple(places), "seed": seed, "stack": stack}
    made, _ = built(on_devices.DevicesInput, on_devices.placing, given, "serve devices")
    rows: list[dict[str, Any]] = made.run().rows
    return rows
