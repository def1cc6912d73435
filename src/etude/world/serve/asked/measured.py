"""What is asked of measured runs, and of rows of measurements, that are predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, switch, text
from etude.base.outputs import Printed
from etude.base.parameters import is_given
from etude.base.talk import progress
from etude.world.serve.asked.service import Replicas, ReplicasInput, RulesInput, replicas_of
from etude.world.serve.asked.stream import RequestStream
from etude.world.serve.measured.again import replayed
from etude.world.serve.measured.bench import bench_result, beside_bench

PANEL: Final = "Measured run"


@dataclass(frozen=True, kw_only=True)
class MeasuredInput:
    """The parameter of what was measured."""

    run: str = argument("path", "folder of a measured run, or a file of `etude requests`", like="other.json")
    config: str = text("name of the run in the folder", like="b", panel=PANEL)
    steps: str = text("source of the times of its steps: recorded, grid, catalogue", like="recorded", panel=PANEL)


@dataclass(frozen=True, kw_only=True)
class ServeRun(RulesInput, ReplicasInput, MeasuredInput):
    """A measured run served again: measured and predicted times

    etude serve run measured/ --config a
    etude serve run result.json llama3-8b --system dgx-h100 --max-num-seqs 64
    etude serve run result.json qwen3-32b --tp 2 --system dgx-h100 \\
        --disaggregate 1:1 --kv-codec fp8
    etude serve run result.json llama3-8b --replicas 2 --router two --system dgx-h100

    A folder says what it ran on; with a file of measured requests, the model, the system and the engine are given.
    """

    sort: bool = switch("sort the rows of the file by time", panel=PANEL)
    seed: int = figure("count", "random seed", 0, panel=PANEL)
    output: Printed = part(Printed)


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
    stream: RequestStream

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


def readable(beside: Beside) -> list[dict[str, Any]]:
    """Measured and predicted figures side by side."""
    found = beside.found
    return [
        {
            "": name,
            "measured s": round(found["measured"][name], 5),
            "predicted s": round(found["predicted"][name], 5),
            "error": f"{found['error'][name]:+.2%}",
        }
        for name in found["measured"]
    ]


def lines(beside: Beside) -> list[str]:
    """What was assumed."""
    return [f"note: {note}" for note in beside.found["assumed"]]


def measured_run(asked: ServeRun) -> FolderRun | FileRun:
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
    return FileRun(replicas=replicas, stream=RequestStream(path=path, options={"sort": asked.sort}))


@dataclass(frozen=True, kw_only=True)
class ServeRows:
    """Rows of serving measurements, each of them predicted

    etude serve rows rows.csv
    """

    rows: str = argument("path", "CSV file of serving measurements: each of its rows is predicted", like="other.csv")
    output: Printed = part(Printed)


def run_rows(path: str) -> list[dict[str, Any]]:
    from etude.world.serve.measured.rows import predict_rows

    with progress("predicting rows") as advance:
        return predict_rows(path, advance=advance)


def readable_rows(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_row(record) for record in found]


def _row(record: dict[str, Any]) -> dict[str, Any]:
    """A row with its first predicted figure and the error."""
    if "refused" in record:
        return {"row": record["row"], "figure": None, "measured": None, "predicted": None, "error": record["refused"]}
    name = next(iter(record["predicted"]))
    measured, predicted = record["measured"].get(name), record["predicted"][name]
    return {
        "row": record["row"],
        "figure": name,
        "measured": round(measured, 3) if measured else None,
        "predicted": round(predicted, 3),
        "error": f"{predicted / measured - 1:+.1%}" if measured else None,
    }
