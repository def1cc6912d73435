"""Fits the power constants of devices, and what an engine adds to its passes: prints what the catalogue holds.

    python benchmarks/fit_power.py            # ../shared/measured: h200_extra/energy, ml_energy_llm.csv
    python benchmarks/fit_power.py --cases mine.csv --system my.yaml      # what measure_power.py wrote

H200: cases of `h200_energy_split.csv` marked `fit`. H100 and B200: models of `ml_energy_split.csv` marked `fit`; a FLOP
of the H100 costs what one of the H200 does (the same chip), one of the B200 as much less as its peak per watt is
higher. Both splits were made beforehand, by the order of the SHA-256 of names. Each constant has a prior, so that what
few models cannot tell stays where physics puts it.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from etude.machine.open import open_device, open_system
from etude.machine.power import PowerCosts
from etude.predict.energy import cases
from etude.predict.energy.decode import PROMPTS, served_row
from etude.predict.energy.engine import Engine

HERE = Path(__file__).resolve().parent
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

    start, spread = np.log([50, 0.9, 10, 110]), np.array([0.5, 0.2, 0.2, 0.15])
    found = least_squares(
        lambda x: np.concatenate([np.log(power(x) / measured) / 0.05, (x - start) / spread]), start, loss="soft_l1"
    )
    active, flop, vector, byte = np.exp(found.x)
    return {"idle_power": idle, "active": active, "flop": flop, "vector": vector, "byte": byte}


def served(gpu: str, flop: float, vector: float) -> tuple[dict[str, float], dict[str, float]]:
    fit = chosen("ml_energy_split.csv", "model")
    rows = [row for row in table(MEASURED / "ml_energy_llm.csv") if row["gpu"] == gpu and row["model"] in fit]
    rows = [row for row in rows if row["task"] in PROMPTS]
    device = open_device(gpu.lower())
    pass_ns = np.array([float(r["avg_batch_size"]) / float(r["output_throughput_tokens_per_sec"]) for r in rows]) * 1e9
    watts = np.array([float(r["avg_power_watts"]) / float(r["num_gpus"]) for r in rows])
    names = ("kernels", "quantised", "network", "pass_ns", "sequence_ns", "prompt")

    def engine(x: np.ndarray) -> Engine:
        return Engine(**dict(zip(names, np.exp(x).tolist(), strict=True)))

    def times(x: np.ndarray) -> np.ndarray:
        by = engine(x)
        return np.array([served_row(row, by, device).pass_ns for row in rows])

    start = np.log([1.1, 1.3, 1.0, 2e6, 40e3, 2.0])
    spread = np.array([0.15, 0.25, 0.3, 0.7, 0.5, 0.5])
    time = least_squares(
        lambda x: np.concatenate([np.log(times(x) / pass_ns) / 0.15, (x - start) / spread]), start, loss="soft_l1"
    )
    by = engine(time.x)
    idle = 0.15 * device.power_w

    def on(y: np.ndarray) -> np.ndarray:
        active, byte, quantised, talking = np.exp(y).tolist()
        costs = PowerCosts(
            active_w=active,
            flop_pj={"bf16": flop},
            vector_pj=vector,
            byte_pj=byte,
            quantised_w=quantised,
            communication_w=talking,
        )
        made = replace(device, idle_power_w=idle, energy=costs)
        return np.array([served_row(row, by, made).device_w for row in rows])

    begin = np.log([0.15 * device.power_w, 110.0 if gpu == "H100" else 80.0, 50.0, 50.0])
    wide = np.array([0.5, 0.2, 0.7, 0.5])
    power = least_squares(
        lambda y: np.concatenate([np.log(on(y) / watts) / 0.1, (y - begin) / wide]), begin, loss="soft_l1"
    )
    active, byte, quantised, talking = np.exp(power.x)
    costs = {"idle_power": idle, "active": active, "byte": byte, "quantised": quantised, "communication": talking}
    return dict(zip(names, np.exp(time.x), strict=True)), costs


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
    print(f"h200: {shown(own)}")
    peaks = {name: open_device(name).peak("bf16") / open_device(name).power_w for name in ("h200", "b200")}
    for gpu, flop in (("H100", own["flop"]), ("B200", own["flop"] * peaks["h200"] / peaks["b200"])):
        engine, costs = served(gpu, flop, own["vector"])
        print(f"{gpu.lower()}: flop: {flop:.4g}, {shown(costs)}\n  vllm: {shown(engine)}")


if __name__ == "__main__":
    main()
