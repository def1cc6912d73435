"""What is asked of the energy of a model that serves, and of rows of measured power."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.figures import argument, part, text
from etude.base.outputs import Printed
from etude.run.simulate.settings import SimulationSettings
from etude.steps.asked.power import KERNELS, KernelChoice, PowerInput, PowerInputs, power_system
from etude.steps.asked.simulation import PANEL, Checked, OnSystem
from etude.world.serve.asked.job import ServingInput, ServingSource

if TYPE_CHECKING:
    from etude.machine.system import System


@dataclass(frozen=True, kw_only=True)
class EnergyServe(ServingInput, OnSystem, Checked, PowerInput):
    """Power over time and energy of a model that serves

    etude energy serve qwen3-8b --prefill 2048 --decode 256 --batch 16 --system dgx-h200 --clock 1200MHz
    etude energy serve llama3.2-3b --prefill 2048 --decode 64 --system xdna2 --kernel product:w4a16:g128
    etude energy serve llama3-70b --tp 8 --requests requests.csv --system dgx-h100 --chunked --token-budget 2048 \\
        --kv-memory 20GB --region sweden
    etude energy serve qwen3-8b --tp 2 --draft llama3.2-1b --speculate 4 --accept 0.7 --decode 255 --system dgx-h100
    etude energy serve qwen3-30b-a3b --gpus 4 --tp 2 --ep 2 --system dgx-h100
    etude energy serve --hf config.json --tp 2 --system dgx-h100

    `--clock` and `--cap` were compared with measurements of an H200; other devices were not measured, and the output
    says so."""

    settings: SimulationSettings = part(SimulationSettings, PANEL, only=KERNELS)


@dataclass(frozen=True, slots=True)
class EnergyServeInputs:
    source: ServingSource
    system: "System"
    choice: KernelChoice
    check: bool
    power: PowerInputs


def energy_serve_inputs(asked: EnergyServe) -> EnergyServeInputs:
    power = PowerInputs.of(asked)
    return EnergyServeInputs(
        ServingSource.of(asked), power_system(asked, power), KernelChoice.of(asked), asked.memory_check, power
    )


def served_energy(given: EnergyServeInputs) -> dict[str, Any]:
    from etude.cost.choice import Menu
    from etude.steps.energy import Clocked

    kernels, units = given.choice.kernels, given.choice.units
    job = given.source.generate(given.system, check=given.check, weights=Menu.of(kernels, units).weights)
    kind = "decode" if given.source.options.decode or given.source.requests else "prefill"
    return given.power.found(Clocked.of_serving(job, given.system, kernels, units), kind)


@dataclass(frozen=True, kw_only=True)
class EnergyRows:
    """Every row of a table of measured power, measured and predicted

    etude energy rows measured.csv
    etude energy rows measured.csv --system dgx-h100 --json

    Rows are those of an energy counter, or of engines that serve models, which name their GPUs."""

    rows: str = argument("path", "CSV file of measured power", like="other.csv")
    system: str = text(
        "simulate rows of an energy counter there: a name of `etude systems`, or a file; default: dgx-h200",
        names=("-s",),
        like="dgx-h100",
    )
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
