"""What is asked of workflows whose calls are placed on devices of several kinds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part
from etude.base.outputs import Printed
from etude.base.parameters import spelled
from etude.world.scenario import PrintedScenario, ScenarioText, only_workload, workload_of
from etude.world.serve.asked.workflow import hook
from etude.world.serve.devices.costs import costs_on
from etude.world.serve.devices.graph import NumberedCalls, sessions_of
from etude.world.serve.devices.policies import policy_of
from etude.world.serve.devices.results import beside, placed_summary
from etude.world.serve.devices.run import PlacementRun, run_placed
from etude.world.serve.devices.spec import open_devices
from etude.world.serve.workflow import Workflow, open_workflow

REFERENCE: Final = "roundrobin"
BESIDE: Final = "dgx-h100"
"""The machine of a scenario whose devices are others."""
USUAL: Final = ("heft", "reuse", "future:2")
SHOWN: Final = (
    "place", "makespan_s", "makespan_over_roundrobin", "p95_s", "p95_over_roundrobin", "loads", "found_tokens",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DevicesInput:
    """Parameters of calls that are placed on devices, one at a time on each."""

    workflow: str = argument("path", "YAML files of tasks: names, files or patterns, with commas", like="flow.yaml")
    devices: str = figure("path", "YAML file of devices of several kinds", like="more-devices.yaml")
    place: Any = figure(
        "noun",
        "placements to compare with round robin: heft, reuse, future:H, FILE.py:name, or several with commas; "
        "default: heft, reuse, future:2",
        "",
        like="heft",
    )
    stack: str = figure("text", "software stack of the engine: vllm, torch-flash2, none", "vllm", like="none")
    seed: int = figure("count", "random seed", 0)


@dataclass(frozen=True, kw_only=True)
class ServeDevices(PrintedScenario, DevicesInput):
    """Calls of workflows placed on devices of several kinds, one at a time on each; policies next to round robin

    etude serve devices "dags/*.yaml" --devices devices.yaml
    etude serve devices flow.yaml --devices devices.yaml --place heft,reuse,future:4
    etude serve devices flow.yaml --devices devices.yaml --place heft
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """Workflows, devices, and the placements that are compared on them."""

    workflows: str
    devices: str
    places: tuple[Any, ...]
    """Names or functions, round robin first."""
    stack: str
    seed: int
    shown: str
    """The placement whose figures represent all."""

    def run(self) -> PlacementRows:
        """Every placement of every call."""
        sessions, flows = self._sessions()
        named = {one if isinstance(one, str) else one.__name__: one for one in self.places}
        ran = [placed_summary(run_placed(sessions, flows, hook(one)), name) for name, one in named.items()]
        return PlacementRows(list(beside(ran)), self.shown)

    def ready(self) -> PlacementRun:
        """All calls before the first, by the placement that is shown."""
        sessions, flows = self._sessions()
        return PlacementRun(sessions, flows, policy_of(hook(self.places[-1])))

    def _sessions(self) -> tuple[NumberedCalls, list[Workflow]]:
        flows = [open_workflow(path) for path in _files(self.workflows)]
        on = open_devices(self.devices)
        models = sorted({role.model for flow in flows for role in flow.models.values()})
        if not models:
            raise UsageError("no model is called, so there is nothing to place", where=self.workflows)
        return sessions_of(flows, on, costs_on(on, models, stack=self.stack), seed=self.seed), flows


@dataclass(frozen=True, slots=True)
class PlacementRows:
    rows: list[dict[str, Any]]
    """Figures of each placement, round robin first."""
    shown: str
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """What `etude serve devices --json` prints."""
        by_name = {row["place"]: row for row in self.rows}
        return by_name[self.shown] | {"places": by_name}


def readable(found: PlacementRows) -> list[dict[str, Any]]:
    """A row for each placement."""
    return [{name: row[name] for name in SHOWN} for row in found.rows]


def placing(asked: DevicesInput) -> Placing:
    given = asked.place
    names = [one.strip() for one in given.split(",") if one.strip()] if isinstance(given, str) else list(given)
    names = names or list(USUAL)
    shown = names[-1] if isinstance(names[-1], str) else names[-1].__name__
    return Placing(
        workflows=asked.workflow, devices=asked.devices, places=tuple(dict.fromkeys([REFERENCE, *names])),
        stack=asked.stack, seed=asked.seed, shown=shown,
    )  # fmt: skip


def devices_scenario(asked: ServeDevices, given: Placing) -> ScenarioText:
    """These calls alone; their devices are those of the file, beside a machine."""
    if len(given.places) > 2 or not asked.place:
        raise UsageError(f"{spelled(asked, 'scenario')} needs one way to place calls", hint="--place heft")
    return only_workload("calls", workload_of(asked, "devices", of="devices"), system=BESIDE, nodes=1)


def _files(text: str) -> list[str]:
    """Workflows by name, and files that are like a pattern; several with commas."""
    found: list[str] = []
    for one in filter(None, (one.strip() for one in text.split(","))):
        if any(sign in one for sign in "*?["):
            base = Path(one)
            like = sorted(str(path) for path in Path(base.anchor or ".").glob(str(base.relative_to(base.anchor))))
            if not like:
                raise UsageError(f"no file matches `{one}`", where="--workflow")
            found += like
        else:
            found.append(one)
    return found
