"""What is asked of rows of measured power."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.base.figures import argument, figure, part
from etude.base.outputs import Printed


@dataclass(frozen=True, kw_only=True)
class EnergyRows:
    """Every row of a table of measured power, measured and predicted

    etude energy rows measured.csv
    etude energy rows measured.csv --system dgx-h100 --json

    Rows are those of an energy counter, or of engines that serve models, which name their GPUs."""

    rows: str = argument("path", "CSV file of measured power", like="other.csv")
    system: str = figure(
        "text", "simulate rows of an energy counter there: a name of `etude systems`, or a file; default: dgx-h200",
        "", names=("-s",), like="dgx-h100",
    )  # fmt: skip
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class PowerRows:
    path: Path
    of_engines: bool
    system: str


def power_rows_inputs(asked: EnergyRows) -> PowerRows:
    path = Path(asked.rows)
    of_engines = _of_engines(path)
    return PowerRows(path, of_engines, "" if of_engines else asked.system)


def predicted_power(given: PowerRows) -> list[dict[str, Any]]:
    if given.of_engines:
        from etude.world.serve.measured import power_rows

        return power_rows(given.path)
    from etude.steps.energy import energy_rows

    return energy_rows(given.path, system=given.system)


def _of_engines(path: Path) -> bool:
    """Whether the rows are from engines that serve models. False if the file cannot be read: its reader reports
    that."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return "avg_batch_size" in file.readline()
    except OSError:
        return False


def power_lines(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per row, for a reader."""
    return [_row(record) for record in found]


def power_errors(found: list[dict[str, Any]]) -> Iterator[str]:
    """The median error, in words."""
    done = [r for r in found if "predicted" in r and r["measured"].get("mean_w")]
    errors = sorted(abs(r["predicted"]["mean_w"] / r["measured"]["mean_w"] - 1) for r in done)
    if errors:
        half = f"{errors[len(errors) // 2]:.1%}"
        yield (
            f"{len(done)} rows predicted, {len(found) - len(done)} rejected or without a measurement; "
            f"error of the power {half} at the median"
        )


def _row(record: dict[str, Any]) -> dict[str, Any]:
    row = {"row": record["row"], "name": record["name"], "measured W": None, "predicted W": None}
    if "refused" in record:
        return row | {"error": record["refused"]}
    measured, power = record["measured"].get("mean_w"), record["predicted"]["mean_w"]
    error = f"{power / measured - 1:+.1%}" if measured else None
    return row | {"measured W": measured, "predicted W": round(power, 1), "error": error}
