"""Fits the power constants of devices: prints what the catalogue holds.

    python benchmarks/fit_power.py            # ../shared/measured: h200_extra/energy, ml_energy_llm.csv
    python benchmarks/fit_power.py --cases mine.csv --system my.yaml      # what measure_power.py wrote

H200: cases of `h200_energy_split.csv` marked `fit`, a split by the order of the SHA-256 of names. H100 and B200: the
text rows of the models in `serving_split.csv`, with which the times of the engine were fitted too; a FLOP of the H100
costs what one of the H200 does (the same chip), one of the B200 as much less as its peak per watt is higher. Each
constant has a prior, so that what few models cannot tell stays where physics puts it.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from etude.machine.open import open_device, open_system
from etude.machine.power import PowerCosts
from etude.machine.system import Device
from etude.steps.energy import cases
from etude.world.serve.measured.rows import STACK, Steady, read_rows, steady, steady_figures
from etude.world.serve.stacks import serving_stack

HERE = Path(__file__).resolve().parent
TEXT = ("lm-arena-chat", "gpqa")
LAYOUT = ("model", "num_gpus", "dp", "ep", "weight_precision")
"""Columns that decide the tables of a row."""
BYTE, TALKING = {"H100": 110.0, "B200": 80.0}, 50.0
"""pJ of a byte, as of the H200 and assumed; W of a collective, assumed. Fitted to seven models they take values that no
memory and no link has, since times that are wrong pull at them."""
MEASURED = HERE.parent.parent / "shared" / "measured"


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def chosen(name: str, key: str) -> set[str]:
    return {row[key] for row in table(HERE / name) if row["use"] == "fit"}


def h200() -> dict[str, float]:
    fit = chosen("h200_energy_split.csv", "name")
    rows = [row for row in table(MEASURED / "h200_extra/energy/energy.csv") if row["name"] in fit]
    return device_costs(rows, "dgx-h200")


def device_costs(rows: list[dict[str, str]], name: str) -> dict[str, float]:
    """Constants of the device of a system, from cases of its energy counter."""
    idle = np.mean([float(row["mean_w"]) for row in rows if row["kind"] == "idle"])
    rows = [row for row in rows if row["kind"] != "idle" and "zeros" not in row["name"]]
    system = open_system(name)
    most = system.device.power_w
    # Power is linear in the constants up to the limit: one run with each constant alone.
    basis, time_s = np.zeros((len(rows), 4)), np.zeros(len(rows))
    for number in range(4):
        one = [1.0 if i == number else 0.0 for i in range(4)]
        costs = PowerCosts(active_w=one[0], flop_pj={"bf16": one[1]}, vector_pj=one[2], byte_pj=one[3])
        on = system.replace(device=replace(system.device, idle_power_w=1e-9, energy=costs, power_w=1e9))
        for i, row in enumerate(rows):
            case = cases.priced(row, on)
            basis[i, number], time_s[i] = case.work_j, case.time_ns / 1e9
    measured = np.array([float(row["mean_w"]) for row in rows])
    duty = np.array([float(row["duty"]) for row in rows])

    def power(x: np.ndarray) -> np.ndarray:
        return idle + np.minimum(basis @ np.exp(x) / time_s, most - idle) * duty

    start, spread = np.log([50, 0.9, 40, 110]), np.array([0.5, 0.2, 0.2, 0.15])
    found = least_squares(
        lambda x: np.concatenate([np.log(power(x) / measured) / 0.05, (x - start) / spread]), start, loss="soft_l1"
    )
    active, flop, vector, byte = np.exp(found.x)
    return {"idle_power": idle, "active": active, "flop": flop, "vector": vector, "byte": byte}


CLOCKS = ("1500", "900")
"""Of `h200_power.csv`: the other clocks and all caps are held out."""


def clocks(path: Path, name: str) -> dict[str, float]:
    """How voltage, memory and idle power follow the clock. Power and time over those at the nominal clock, so that it
    does not matter that one board draws less than another."""
    rows, system = table(path), open_system(name)
    nominal = {row["name"]: row for row in rows if not row["clock_mhz"] and not row["cap_w"]}
    rows = [row for row in rows if row["clock_mhz"] in CLOCKS]

    def errors(x: np.ndarray) -> list[float]:
        costs = replace(
            system.device.energy or PowerCosts(), voltage_clock_mhz=x[0] * 1e3, least_voltage=x[1],
            memory_clock_mhz=x[2] * 1e3, clocked_idle=x[3],
        )  # fmt: skip
        on, found = system.replace(device=replace(system.device, energy=costs)), []
        for row in rows:
            first = nominal[row["name"].replace("idle_locked", "idle_start")]
            now, then = cases.case_power(row, on), cases.case_power(first, on)
            found.append(np.log(now.mean_w / then.mean_w / (float(row["mean_w"]) / float(first["mean_w"]))))
            if then.call_ns:
                found.append(np.log(now.call_ns / then.call_ns / (float(row["call_ns"]) / float(first["call_ns"]))))
        return [error / 0.05 for error in found]

    bounds = ([0.8, 0.5, 1.2, 0.05], [1.5, 0.95, 1.9, 0.8])
    found = least_squares(errors, [1.15, 0.716, 1.55, 0.38], bounds=bounds, loss="soft_l1", diff_step=0.02)
    names = ("voltage_clock_mhz", "least_voltage", "memory_clock_mhz", "clocked_idle")
    return dict(zip(names, found.x * [1e3, 1, 1e3, 1], strict=True))


def served(gpu: str, flop: float, vector: float) -> dict[str, float]:
    """Constants of the device of rows of serving, with times as `etude serve` predicts them."""
    fit = {row["model"] for row in table(HERE / "serving_split.csv")}
    rows = [row for row in read_rows(MEASURED / "ml_energy_llm.csv") if row["gpu"] == gpu and row["model"] in fit]
    rows = [row for row in rows if row["task"] in TEXT]
    device, stack = open_device(gpu.lower()), serving_stack(STACK, gpu.lower())
    watts = np.array([float(r["avg_power_watts"]) / float(r["num_gpus"]) for r in rows])
    idle, byte = 0.15 * device.power_w, BYTE[gpu]

    def alone(**costs: Any) -> Device:
        """The device with these constants alone, and no limit."""
        own = PowerCosts(**{"active_w": 0.0, "flop_pj": {"bf16": 1e-9}, "vector_pj": 0.0} | costs)
        return replace(device, idle_power_w=1e-9, power_w=1e9, energy=own)

    def drawn(on: Device, made: dict[tuple[str, ...], Steady]) -> np.ndarray:
        """By all rows on a device, with the tables of one row of each layout."""
        found = []
        for row in rows:
            like = made[tuple(row[name] for name in LAYOUT)]
            on_device = replace(steady(row), tables=like.tables, system=like.system.replace(device=on))
            found.append(steady_figures(on_device, stack)["avg_power_watts"])
        return np.array(found) / gpus

    gpus = np.array([float(row["num_gpus"]) for row in rows])
    working = alone(flop_pj={"bf16": flop}, vector_pj=vector, byte_pj=byte, communication_w=TALKING)
    # Work is in the tables; the power of running kernels is beyond them, in tables without any.
    firsts = {tuple(row[name] for name in LAYOUT): row for row in rows}
    busy = {key: steady(row, working) for key, row in firsts.items()}
    idling = {key: steady(row, alone()) for key, row in firsts.items()}
    work = drawn(working, busy)
    names = ("active_w", "quantised_w", "packed_w")
    basis = np.stack([drawn(alone(**{name: 1.0}), idling) for name in names])

    def power(y: np.ndarray) -> np.ndarray:
        return np.minimum(idle + work + np.exp(y) @ basis, device.power_w)

    begin, wide = np.log([0.15 * device.power_w, 50.0, 50.0]), np.array([0.5, 0.7, 0.7])
    found = least_squares(
        lambda y: np.concatenate([np.log(power(y) / watts) / 0.1, (y - begin) / wide]), begin, loss="soft_l1"
    )
    own = dict(zip(("active", "quantised", "packed"), np.exp(found.x), strict=True))
    return {"idle_power": idle, "byte": byte, "communication": TALKING} | own


def shown(found: dict[str, float]) -> str:
    return ", ".join(f"{name}: {value:.4g}" for name, value in found.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--system", default="dgx-h200")
    given = parser.parse_args()
    if given.cases is not None:
        print(shown(device_costs(table(given.cases), given.system)))
        return
    own = h200()
    print(f"h200: {shown(own)}\n  {shown(clocks(HERE / 'h200_power.csv', 'dgx-h200'))}", flush=True)
    peaks = {name: open_device(name).peak("bf16") / open_device(name).power_w for name in ("h200", "b200")}
    for gpu, flop in (("H100", own["flop"]), ("B200", own["flop"] * peaks["h200"] / peaks["b200"])):
        print(f"{gpu.lower()}: flop: {flop:.4g}, {shown(served(gpu, flop, own['vector']))}")


if __name__ == "__main__":
    main()
