"""`etude world window`: a moment of a workload as a job, and how far the world is from it node by node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, text
from etude.base.files import writing
from etude.base.outputs import OutputPlace, Printed, Written
from etude.base.talk import say
from etude.base.units import format_time
from etude.steps.asked.job_out import JobFiles, To, write_job
from etude.world.makers import is_kind, kinds
from etude.world.scenario import Scenario, WorkloadKinds, read_scenario
from etude.world.windows import JobWindow, WindowRequest, window_of, workload_spec

SYSTEM, OPTIONS = "system.yaml", "options.yaml"
"""Files of a window's folder: the machine as the workload has it, and options of the simulation."""
MOMENT: Final = "The moment"
READ: Final = {
    "train": ("steps",),
    "serve": ("for_ns", "replica"),
    "workflow": ("for_ns", "replica", "role"),
    "images": ("for_ns",),
    "rl": ("for_ns",),
}
"""Parameters that a kind of workload reads."""


@dataclass(frozen=True, kw_only=True)
class WorldWindow(Written):
    """A moment of a workload of a world, written out as a job and simulated node by node

    etude world window monday.yaml --workload pretrain --at 40min --steps 2 -o job/
    etude world window monday.yaml --workload chat --at 10min --for 500ms --replica 0 -o job/
    etude world window monday.yaml --workload agents --at 2s --role planner
    etude simulate job/ --system job/system.yaml --yaml job/options.yaml

    The scenario runs up to the moment. Of training the step in progress is written, in the plan that the job has
    then, and the steps after it; of replicas the passes that start from then on, with the tokens of each request. The
    folder has the job, `system.yaml` (the machine as software, links and power leave it) and, where there are any,
    `options.yaml` (of the simulation). What the world takes for the stretch, and what the job takes node by node, is
    printed.
    """

    file: str = argument("path", "YAML file of the scenario", like="monday.yaml")
    workload: str = figure("text", "name of the workload", like="pretrain", panel=MOMENT)
    at_ns: int = figure("time", "the moment, from the start of the scenario", zero=True, like="40min", panel=MOMENT)
    steps: int = figure("count", "steps of training that are written; default: 1", 0, panel=MOMENT)
    for_ns: int = figure("time", "how long passes may start; default: 1s", 0, like="500ms", panel=MOMENT)
    replica: int = figure(
        "count", "passes of this replica only; default: of all", -1, zero=True, like="0", panel=MOMENT
    )
    role: str = text("model of a workflow, by its role", like="planner", panel=MOMENT)
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class WindowInputs:
    scenario: Scenario
    workload: str
    wanted: WindowRequest
    place: OutputPlace | None


@dataclass(frozen=True, slots=True, eq=False)
class WrittenWindow:
    """A window, and the time of its job node by node."""

    window: JobWindow
    node_level_ns: int
    passes: tuple[Any, Any] | None = None
    """Times of each pass, or group of devices, in the world and node by node; None: of training."""

    @property
    def record(self) -> dict[str, Any]:
        found = self.window
        return {
            **found.counts,
            "start_s": found.start_ns / 1e9,
            "ranks": len(found.job),
            "nodes": found.job.nodes,
            "world_s": found.world_ns / 1e9,
            "node_level_s": self.node_level_ns / 1e9,
            "difference": self.node_level_ns / found.world_ns - 1.0,
            **({} if self.passes is None else self._of_passes(*self.passes)),
            "options": found.given(),
            "notes": list(found.notes),
        }

    @staticmethod
    def _of_passes(world: Any, node_level: Any) -> dict[str, float]:
        """Difference of all together, and of one at the median and at most."""
        import numpy as np

        off = np.abs(node_level / world - 1.0)
        whole = float(node_level.sum() / world.sum() - 1.0)
        return {"passes_difference": whole, "median_error": float(np.median(off)), "max_error": float(off.max())}


def window_inputs(asked: WorldWindow) -> WindowInputs:
    scenario = read_scenario(asked.file, WorkloadKinds(is_kind, kinds))
    kind = workload_spec(scenario, asked.workload).kind
    more = {name: getattr(asked, name) for name in READ.get(kind, ())}
    return WindowInputs(scenario, asked.workload, WindowRequest(at_ns=asked.at_ns, **more), OutputPlace.of(asked))


def write_window(given: WindowInputs) -> WrittenWindow:
    found = window_of(given.scenario, given.workload, given.wanted)
    if found.system.topology is not None:
        raise UsageError("a machine that is a graph has no file for a part of it", where=given.scenario.where)
    if given.place is not None:
        _write(found, given.place)
    for note in found.notes:
        say(f"note: {note}")
    run = found.simulated()
    return WrittenWindow(found, run.makespan_ns, None if found.pass_ns is None else found.pass_ns(run))


def _write(found: JobWindow, place: OutputPlace) -> None:
    write_job(found.job, JobFiles(out=place.path, to=To.PARQUET, force=place.force))
    given = {SYSTEM: found.system.to_dict()} | ({OPTIONS: found.given()} if found.given() else {})
    for name, values in given.items():
        _write_yaml(values, place.path / name, force=place.force)
    more = f" --yaml {place.path / OPTIONS}" if OPTIONS in given else ""
    say(f"simulate it: etude simulate {place.path} --system {place.path / SYSTEM}{more}")


def _write_yaml(values: dict[str, Any], path: Path, *, force: bool) -> None:
    import yaml

    with writing(path, force=force) as temporary:
        temporary.write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True), "utf-8")


def readable(found: WrittenWindow) -> dict[str, Any]:
    record, window = found.record, found.window
    counts = ", ".join(f"{name} {value}" for name, value in window.counts.items())
    rows = {
        "from": format_time(window.start_ns),
        "written": f"{counts}; {record['ranks']:,} ranks, {record['nodes']:,} nodes",
        "world": format_time(window.world_ns),
        "node by node": format_time(found.node_level_ns),
        "difference": f"{record['difference']:+.3%}",
    }
    if found.passes is not None:
        one = "a group" if "groups" in window.counts else "a pass"
        rows["of all together"] = f"{record['passes_difference']:+.3%}"
        rows[f"of {one}"] = f"{record['median_error']:.2%} at the median, {record['max_error']:.1%} at most"
    return rows
