"""What if: knobs of the machine and edits of the job, simulated as the commands do that are shown with the result."""

from __future__ import annotations

import shlex
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from etude.analyse.breakdown import breakdown
from etude.base.errors import UsageError
from etude.base.files import new_place, writing
from etude.machine import open_system, system_names
from etude.machine.system import System
from etude.make.transform.edits import Edit, apply_edits
from etude.model.job import Job
from etude.run.simulate import Simulated, simulate
from etude.steps.asked.edits import run_times
from etude.steps.asked.times_on import with_times
from etude.store import columns
from etude.tell.studio.session import StudioRun

KEPT: Final = 12
"""Results that are kept."""
NETWORKS: Final = ("", "analytic", "links", "flow")


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to turn: `scale` from `least` to `most` with 1 as it is, `switch`, or `choice`."""

    name: str
    label: str
    kind: str
    doc: str
    least: float = 0.125
    most: float = 8.0
    of: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "label": self.label,
            "kind": self.kind,
            "doc": self.doc,
            "least": self.least,
            "most": self.most,
            "of": list(self.of),
        }


KNOBS: Final = (
    Knob("bandwidth", "Network bandwidth", "scale", "bandwidth of every level of the network, times this"),
    Knob("latency", "Network latency", "scale", "latency of every level of the network, times this", 0.1, 10.0),
    Knob("level", "Level of the network", "choice", "whose bandwidth and latency are scaled", of=("",)),
    Knob("kernels", "Kernel speed", "scale", "compute on the device takes its time divided by this", 0.25, 8.0),
    Knob(
        "host", "Host speed", "scale", "operators and launches of the host take their time divided by this", 0.25, 8.0
    ),
    Knob("compression", "Compression", "scale", "bytes of collectives divided by this; coding is free", 1.0, 8.0),
    Knob("slow", "Slow rank", "scale", "one rank takes this times as long", 1.0, 4.0),
    Knob("overlap", "Communication on a stream of its own", "switch", "collectives do not queue behind compute"),
    Knob("fuse", "Fuse elementwise chains", "switch", "results between are not written"),
    Knob(
        "network", "Network model", "choice", "closed forms, one message at a time, or links shared fairly", of=NETWORKS
    ),
)
SCALES: Final = {knob.name: knob for knob in KNOBS if knob.kind == "scale"}
SWITCHES: Final = tuple(knob.name for knob in KNOBS if knob.kind == "switch")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfState:
    """Where the knobs are. Equal states are the same what-if."""

    system: str
    scales: tuple[tuple[str, float], ...] = ()
    """Those that are not at 1."""
    rank: int = 0
    """The slow one."""
    switches: tuple[str, ...] = ()
    network: str = ""
    level: str = ""
    """The one level whose bandwidth and latency are scaled; all, if none is named."""
    edits: tuple[str, ...] = ()
    """More edits, after those of the knobs."""

    def scale(self, name: str) -> float:
        return dict(self.scales).get(name, 1.0)

    @property
    def all_edits(self) -> list[str]:
        """Edits of the knobs and others, as `etude edit` takes them."""
        found = []
        for name, text in (
            ("kernels", "speed kind=compute by={:g}"),
            ("host", "speed kind=host by={:g}"),
            ("compression", "compress ratio={:g}"),
        ):
            if self.scale(name) != 1:
                found.append(text.format(self.scale(name)))
        found += [{"overlap": "overlap stream=99", "fuse": "fuse"}[name] for name in self.switches]
        return [*found, *self.edits]

    @property
    def options(self) -> dict[str, Any]:
        """Options of the simulation."""
        found: dict[str, Any] = {"network": self.network} if self.network else {}
        return found | ({"slow_ranks": {self.rank: self.scale("slow")}} if self.scale("slow") != 1 else {})

    @property
    def changes_machine(self) -> bool:
        return self.scale("bandwidth") != 1 or self.scale("latency") != 1


def state_of(given: Mapping[str, Any], usual: str) -> WhatIfState:
    """The state of a request, checked."""
    known = {*SCALES, *SWITCHES, "system", "network", "level", "rank", "edits"}
    if unknown := [name for name in given if name not in known]:
        raise UsageError(f"there is no knob `{unknown[0]}`", hint=f"known: {', '.join(sorted(known))}")
    scales = []
    for name, knob in SCALES.items():
        value = given.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not knob.least <= value <= knob.most:
            raise UsageError(f"`{name}` is not a number from {knob.least:g} to {knob.most:g}")
        if value != 1:
            scales.append((name, float(f"{value:g}")))
    edits = given.get("edits", [])
    network, rank, system = given.get("network", ""), given.get("rank", 0), given.get("system") or usual
    if not isinstance(edits, list) or not all(isinstance(one, str) for one in edits):
        raise UsageError("`edits` is not a list of texts")
    if any(one.startswith("@") for one in edits):
        raise UsageError("edits are given as texts here, not as files")
    if network not in NETWORKS or isinstance(rank, bool) or not isinstance(rank, int):
        raise UsageError("`network` or `rank` is not one of those there are")
    if system != usual and system not in system_names():
        raise UsageError(f"there is no system `{system}` in the catalogue", hint="a file is given by `--system`")
    level = given.get("level") or ""
    if level and level not in level_names(system):
        raise UsageError(f"`{system}` has no level `{level}`", hint=f"known: {', '.join(level_names(system))}")
    switches = tuple(name for name in SWITCHES if given.get(name) is True)
    return WhatIfState(
        system=system,
        scales=tuple(scales),
        rank=rank,
        switches=switches,
        network=network,
        level=level,
        edits=tuple(one.strip() for one in edits if one.strip()),
    )


def level_names(system: str) -> list[str]:
    """The levels of a system's network, inner ones first."""
    return [level.name for level in open_system(system).levels]


def machine_of(state: WhatIfState) -> System:
    """The machine of a state. It is made of what its file says, so that the command that reads the file has the
    same."""
    system = open_system(state.system)
    if not state.changes_machine:
        return system
    by, slower = state.scale("bandwidth"), state.scale("latency")
    levels = tuple(
        replace(
            level,
            bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * by,
            latency_ns=level.latency_ns * slower,
            step_ns={name: ns * slower for name, ns in level.step_ns.items()},
        )
        if state.level in ("", level.name)
        else level
        for level in system.levels
    )
    if system.topology is not None:
        raise UsageError("the links of a graph are not scaled", hint="give a system of levels")
    return System.from_dict(system.replace(levels=levels, name=f"{system.name}-what-if").to_dict())


@dataclass
class WhatIfs:
    """The what-ifs of one run: what is computed once is kept, and only what a knob changes is computed again."""

    one: StudioRun
    _jobs: OrderedDict[Any, tuple[Job, list[str]]] = field(default_factory=OrderedDict)
    _runs: OrderedDict[Any, Simulated] = field(default_factory=OrderedDict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def usual(self) -> str:
        """The system that a state is on unless it says another: that of the run."""
        return self.one.source.system or "dgx-h100"

    def result(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The step before and after, why, and the commands that give the same."""
        state = state_of(given, self.usual)
        with self._turn:
            before = self._simulated(WhatIfState(system=state.system))
            after = self._simulated(state)
        _, notes = self._edited(state)
        return {
            "system": state.system,
            "before": _figures(before),
            "after": _figures(after),
            "notes": [*self._assumed(state), *notes, *after.notes],
            "edits": state.all_edits,
            **self.words(state),
        }

    def _assumed(self, state: WhatIfState) -> list[str]:
        """What was not given, and is taken."""
        unsaid = not self.one.source.system and state.system == self.usual
        return [f"no system was given: both are simulated on {state.system}"] if unsaid else []

    def simulated(self, given: Mapping[str, Any]) -> Simulated:
        with self._turn:
            return self._simulated(state_of(given, self.usual))

    def _simulated(self, state: WhatIfState) -> Simulated:
        if state not in self._runs:
            job, _ = self._edited(state)
            system = machine_of(state)
            grown = system.for_ranks(job.world_size) if state.system in system_names() else system
            self._runs[state] = simulate(job, grown, **state.options)
        return _kept(self._runs, state)

    def _edited(self, state: WhatIfState) -> tuple[Job, list[str]]:
        """The job of a state: the times of its compute, and its edits."""
        key = (state.system, tuple(state.all_edits))
        if key not in self._jobs:
            self._jobs[key] = _edited_job(self.one.job(), state)
        return _kept(self._jobs, key)

    def words(self, state: WhatIfState, folder: str = "what-if") -> dict[str, Any]:
        """The commands of a state, and the files that they read."""
        path, lines, files = str(self.one.source.path), [], {}
        system = state.system
        if state.changes_machine:
            system = f"{folder}/system.yaml"
            files["system.yaml"] = yaml.safe_dump(machine_of(state).to_dict(), sort_keys=False)
        if state.all_edits:
            files["edits.txt"] = "".join(f"{one}\n" for one in state.all_edits)
            lines.append(
                shlex.join(["etude", "edit", path, "-o", f"{folder}/job", *state.all_edits, "--times-on", state.system])
            )
            path = f"{folder}/job"
        options = ["--network", state.network] if state.network else []
        options += ["--slow-rank", f"{state.rank}={state.scale('slow'):g}"] if state.scale("slow") != 1 else []
        lines.append(shlex.join(["etude", "simulate", path, "--system", system, *options]))
        files["study.yaml"] = self._study(state, options)
        return {"commands": lines, "files": files, "command": " && ".join(lines), "python": self._python(state)}

    def _study(self, state: WhatIfState, options: list[str]) -> str:
        """The same as a study file: it runs anywhere, on another job and machine too (`--job`, `--system`)."""
        path = str(self.one.source.path.resolve())
        job, system = ("job" if state.all_edits else path), ("system.yaml" if state.changes_machine else state.system)
        run = {"before": ["simulate", path, "--system", state.system, "--json"]}
        if state.all_edits:
            run["edited"] = ["edit", path, "-o", "job", *state.all_edits, "--times-on", state.system]
        run["after"] = ["simulate", job, "--system", system, *options, "--json"]
        study: dict[str, Any] = {
            "title": f"What if: {self.one.index.head['name']}",
            "run": {name: shlex.join(words) for name, words in run.items()},
        }
        if state.changes_machine:
            study["files"] = {"system.yaml": machine_of(state).to_dict()}
        study["metrics"] = {
            "after": {"value": "after.makespan_ns / 1e6", "better": "lower", "unit": "ms"},
            "before": {"value": "before.makespan_ns / 1e6", "unit": "ms"},
            "times_as_fast": "before.makespan_ns / after.makespan_ns",
        }
        return yaml.safe_dump(study, sort_keys=False)

    def save(self, given: Mapping[str, Any], out: Path | None, name: str) -> dict[str, Any]:
        """Writes a folder right below `out`: the files that its commands read, the commands, and the edited job."""
        if out is None:
            raise UsageError("this studio does not write", hint="start it with `--write DIR`")
        state, place = state_of(given, self.usual), new_place(out, name)
        with self._turn:
            job, _ = self._edited(state)
        words = self.words(state, str(place))
        with writing(place) as folder:
            folder.mkdir()
            for file, text in words["files"].items():
                (folder / file).write_text(text, "utf-8")
            (folder / "commands.txt").write_text("".join(f"{line}\n" for line in words["commands"]), "utf-8")
            if state.all_edits:
                (folder / "job").mkdir()
                columns.write_job(job, folder / "job")
        return {"written": str(place)}

    def _python(self, state: WhatIfState) -> str:
        """The line of Python that gives the same; an edited job is the one that the command before it wrote."""
        job = "what-if/job" if state.all_edits else str(self.one.source.path)
        options = "".join(f", {name}={value!r}" for name, value in state.options.items())
        system = "what-if/system.yaml" if state.changes_machine else state.system
        return f"etude.simulate(etude.open({job!r}), {system!r}{options})"


def _edited_job(job: Job, state: WhatIfState) -> tuple[Job, list[str]]:
    """As `etude edit --times-on` does it."""
    if not state.all_edits:
        return job, []
    system = open_system(state.system)
    timed, machine = with_times(job, system), system.for_ranks(job.world_size)
    found = apply_edits(timed, [Edit.parse(text) for text in state.all_edits], system=machine, times=run_times(machine))
    return with_times(found.job, system), list(found.notes)


def _kept(found: OrderedDict[Any, Any], key: Any) -> Any:
    found.move_to_end(key)
    while len(found) > KEPT:
        del found[next(one for one in found if one != key)]
    return found[key]


def _figures(run: Simulated) -> dict[str, Any]:
    """The time of a run, of its steps, and where the devices' time goes, as means over the ranks."""
    ends = list(run.step_ends().values())
    table = breakdown(run)
    means = (
        {
            name: float(np.mean(table[name].to_numpy()))
            for name in ("span_ns", "compute_ns", "comm_ns", "exposed_comm_ns", "idle_ns")
        }
        if len(table)
        else {}
    )
    steps = max(len(ends), 1)
    return {"makespan_ns": run.makespan_ns, "steps": steps, "step_ns": run.makespan_ns / steps, "mean": means}
