"""Training steps: rows of published tables, and of steps that one GPU was measured with in eager PyTorch."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from etude.base.errors import UsageError
from etude.cost.opdb import OpDatabase
from etude.cost.stacks import Stack, open_stack
from etude.decide.score.kind import CsvRow, Item, PredictedRow, ScoreKind, ScoreRequest, check_system, table_rows
from etude.decide.score.source import ScoreFile
from etude.machine import System, open_system
from etude.steps.estimates import open_settings
from etude.steps.measured import eager, rows
from etude.steps.measured.row_estimates import row_estimate
from etude.steps.measured.unsaid import unsaid
from etude.steps.operators import open_ops
from etude.steps.step import predict as predict_step
from etude.steps.step import step_time


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    row = item.value
    stack = open_stack(asked.stack) if asked.stack else None
    system = open_system(asked.system) if asked.system else None
    if _is_eager(frozenset(row)):
        return _eager(row, int(item.label), asked.ops, stack, system)
    case = rows.case_or_refused(row, int(item.label), stack, system)
    if isinstance(case, rows.Refused):
        raise UsageError(case.why)
    assumed = (*case.assumed, *unsaid(row, case, spare=rows.SPARE, system=bool(asked.system)))
    step_s = _step_s(case, asked.ops)
    found = row_estimate(case, step_s, unstated=open_settings(row), by_database=asked.ops is not None)
    return PredictedRow(
        measured={"step_s": case.step_s}, predicted={"step_s": step_s}, assumed=assumed, estimates={"step_s": found}
    )


def _step_s(case: rows.Case, ops: Path | None) -> float:
    if ops is None:
        return step_time(case.model, case.plan, case.system, case.stack)
    found = predict_step(case.model, case.plan, case.system, stack=case.stack, ops=_database(ops), check=False)
    return found.step_time_ns / 1e9


@cache
def _database(path: Path) -> OpDatabase:
    return open_ops(path)


def _check(asked: ScoreRequest) -> None:
    check_system(asked)
    if asked.stack:
        open_stack(asked.stack)
    if asked.ops is not None:
        _database.cache_clear()  # the file may have changed since
        _database(asked.ops)


def _eager(row: CsvRow, number: int, ops: Path | None, stack: Stack | None, system: System | None) -> PredictedRow:
    case = eager.eager_case(row, number, stack, system)
    measured, predicted = {"step_s": case.step_s}, {"step_s": _step_s(case, ops)}
    assumed = [*case.assumed]
    if row.get("peak_bytes"):
        measured["peak_memory_bytes"] = float(row["peak_bytes"])
        predicted["peak_memory_bytes"] = float(eager.peak_memory_bytes(case))
        assumed.append("memory: states, gradients and the loss in bf16, a gated activation as two operations")
    estimates = {
        name: row_estimate(case, predicted[name], figure=figure, by_database=ops is not None)
        for name, figure in (("step_s", "step"), ("peak_memory_bytes", "memory"))
        if name in predicted
    }
    return PredictedRow(measured=measured, predicted=predicted, assumed=assumed, estimates=estimates)


def _is_eager(columns: frozenset[str]) -> bool:
    return set(eager.COLUMNS) <= columns


def _holds(source: ScoreFile) -> bool:
    return source.has(*rows.NEEDED) or _is_eager(source.columns)


def _rows(path: Path, asked: ScoreRequest) -> list[Item]:
    found = table_rows(path, asked)
    if found and not _is_eager(frozenset(found[0].value)):
        rows.read_rows(path)  # the columns that it needs
    return found


KIND: Final = ScoreKind(
    name="training",
    doc="CSV of measured training steps: model, gpu_type, value, unit, ...; or layers, hidden, ..., "
    "train_step_ms_median",
    holds=_holds,
    rows=_rows,
    predict=predict,
    reads=frozenset({"system", "stack", "ops"}),
    check=_check,
)
