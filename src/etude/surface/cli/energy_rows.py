"""Rows of measured power, each predicted, and how energy is shown."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.base.figures import argument, figure, part
from etude.base.outputs import Printed
from etude.base.talk import say
from etude.surface.cli.output import emit
from etude.surface.verb import Verb


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
class RowsInputs:
    path: Path
    of_engines: bool
    system: str


def rows_inputs(asked: EnergyRows) -> RowsInputs:
    path = Path(asked.rows)
    of_engines = _of_engines(path)
    return RowsInputs(path, of_engines, "" if of_engines else asked.system)


def run_rows(given: RowsInputs) -> list[dict[str, Any]]:
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


def show_rows(found: list[dict[str, Any]]) -> None:
    emit([_row(record) for record in found])
    done = [r for r in found if "predicted" in r and r["measured"].get("mean_w")]
    errors = sorted(abs(r["predicted"]["mean_w"] / r["measured"]["mean_w"] - 1) for r in done)
    if errors:
        say(f"{len(done)} rows predicted, {len(found) - len(done)} rejected or without a measurement; "
            f"error of the power {errors[len(errors) // 2]:.1%} at the median")  # fmt: skip


def _row(record: dict[str, Any]) -> dict[str, Any]:
    row = {"row": record["row"], "name": record["name"], "measured W": None, "predicted W": None}
    if "refused" in record:
        return row | {"error": record["refused"]}
    measured, power = record["measured"].get("mean_w"), record["predicted"]["mean_w"]
    error = f"{power / measured - 1:+.1%}" if measured else None
    return row | {"measured W": measured, "predicted W": round(power, 1), "error": error}


VERB: Verb[Any, Any, Any] = Verb(
    name="energy rows", asks=EnergyRows, inputs=rows_inputs, run=run_rows, record=lambda found: {"rows": found},
    show=show_rows,
)  # fmt: skip


# -- what a reader sees ------------------------------------------------------------------------------------------------


def show(figures: dict[str, Any]) -> None:
    """The most important figures, formatted."""
    from etude.base.units import format_time

    total = figures["energy_j"] or 1.0
    rows = {
        "energy": f"{figures['energy_j']:.4g} J, {figures['kwh']:.4g} kWh of the site",
        "power": f"{figures['mean_w']:.4g} W on average, {figures['peak_w']:.4g} W at most",
        "per device": f"{figures['device_mean_w']:.4g} W on average",
        "time": format_time(figures["time_ns"]),
        "consumed by": ", ".join(
            f"{name} {joules / total:.0%}" for name, joules in list(figures["by_class"].items())[:5]
        ),
        "swing": f"{figures['swing_w']:.4g} W",
    }
    names = {"per_step_j": "J per step", "per_token_j": "J per token", "per_request_j": "J per request"}
    names |= {"carbon_g": "g of CO2", "cost": "electricity cost in dollars", "device_cost": "device cost in dollars"}
    rows |= {"available": _available(figures)} if figures["available"] < 1 else {}
    names |= {name: name for name in ("checkpoints", "failures") if figures[name]}
    names |= {"clock": "clock relative to nominal", "cap_met": "within the cap"}
    emit(rows | {shown: figures[key] for key, shown in names.items() if figures.get(key) is not None})


def _available(figures: dict[str, Any]) -> str:
    from etude.base.units import format_time

    if not figures["expected_time_ns"]:
        return "never all at the same time"
    return (
        f"{figures['available']:.1%} of the hours: {format_time(figures['expected_time_ns'])} with those they are not"
    )
