"""What is asked of measured runs, and of rows of measurements, that are predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import argument, figure
from etude.base.parameters import is_given
from etude.world.serve.asked.service import Replicas, ReplicasInput, RulesInput, replicas_of
from etude.world.serve.asked.stream import Stream
from etude.world.serve.measured.again import replayed
from etude.world.serve.measured.bench import bench_result, beside_bench

PANEL: Final = "Measured run"


@dataclass(frozen=True, kw_only=True)
class MeasuredInput:
    """The parameter of what was measured."""

    run: str = argument("path", "folder of a measured run, or a file of `etude requests`", like="other.json")
    config: str = figure("text", "name of the run in the folder", "", like="b", panel=PANEL)
    steps: str = figure(
        "text", "source of the times of its steps: recorded, grid, catalogue", "", like="recorded", panel=PANEL
    )


@dataclass(frozen=True, kw_only=True)
class RunInput(RulesInput, ReplicasInput, MeasuredInput):
    """Parameters of a measured run: of a folder what it is called, of a file what it ran on."""

    sort: bool = figure("switch", "sort the rows of the file by time", False, panel=PANEL)
    seed: int = figure("count", "random seed", 0, zero=True, panel=PANEL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderRun:
    """A folder says what it ran on."""

    folder: str
    ops: Path | None
    config: str
    steps: str

    def run(self) -> Beside:
        return Beside(replayed(self.folder, ops=self.ops, config=self.config, steps=self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRun:
    """Measured requests, on replicas that are asked for."""

    replicas: Replicas
    stream: Stream

    def run(self) -> Beside:
        measured = bench_result(Path(self.stream.path))
        made = self.replicas.open()
        return Beside(beside_bench(measured, made.serve(self.stream.one())), made.notes)


@dataclass(frozen=True, slots=True)
class Beside:
    """Measured and predicted figures."""

    found: dict[str, Any]
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """What `etude serve run --json` prints."""
        return self.found


def measured_run(asked: RunInput) -> FolderRun | FileRun:
    """Reads what a folder, or what a file needs."""
    path = asked.run
    if not Path(path).is_file():
        ops = asked.ops
        return FolderRun(folder=path, ops=None if ops is None else Path(ops), config=asked.config, steps=asked.steps)
    if not asked.model or not (is_given(asked, "system") or str(asked.model).endswith((".yaml", ".yml"))):
        hint = "etude serve run result.json llama3-8b --system dgx-h100, and the engine's flags"
        raise UsageError("measured requests do not say what they ran on", where=f"RUN: {path}", hint=hint)
    replicas = replicas_of(asked)
    replicas = replace(replicas, seed=asked.seed) if replicas.draws else replicas
    return FileRun(replicas=replicas, stream=Stream(path=path, options={"sort": asked.sort}))


@dataclass(frozen=True, kw_only=True)
class RowsInput:
    """The parameter of rows of serving measurements."""

    rows: str = argument("path", "CSV file of serving measurements: each of its rows is predicted", like="other.csv")
