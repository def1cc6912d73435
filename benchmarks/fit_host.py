"""What the host of a GPU takes for an event of the profiler and for a call of the driver, without the profiler.

    python benchmarks/fit_host.py                               the fit on h200_host.csv, and its errors
    python benchmarks/fit_host.py --add MACHINE FOLDER          rows of recordings that record_host.py made

A step takes (EVENT_NS events + CALL_NS calls) (time of an event under the profiler / 25 us) ** BELIEVED. The power is
tried in steps of 0.05; the two others are least squares of relative errors. Rows of machines or programs that are
marked `held` are left out of the fit. Errors are printed by leaving out one program at a time, and for what is held
out; of `../shared/measured/replay` those two programs whose host is the limit.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

import etude
from etude.capture.ingest.runs import WantedTimes
from etude.run.replay import plan
from etude.run.replay.host_time import USUAL_NS

ROWS = Path(__file__).with_name("h200_host.csv")
SHARED = Path(__file__).resolve().parents[2] / "shared" / "measured" / "replay"
BOUND_BY_HOST = ("gpt_s_b2", "gpt_s_b8_foreach")
Row = dict[str, str]


def row_of(recording: Path, step_ns: float, **more: str) -> Row:
    program = plan(etude.open(recording, times=WantedTimes(estimate=False)))[0]
    host, steps = program.about["host"], program.about["steps"]
    figures = {"events": host["events"] / steps, "calls": host["calls"] / steps,
               "recorded_ns": host["recorded_ns"] / steps, "step_ns": step_ns}  # fmt: skip
    return {**more, **{name: f"{value:.0f}" for name, value in figures.items()}}


def add(machine: str, folder: Path, held: bool) -> None:
    rows = read()
    for told in csv.DictReader((folder / "host.csv").open()):
        name = told["name"]
        rows.append(row_of(folder / name, float(told["step_ns"]), machine=machine, name=name, held=str(int(held))))
    with ROWS.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("machine", "name", "held", "events", "calls", "recorded_ns", "step_ns"))
        writer.writeheader()
        writer.writerows(rows)


def read() -> list[Row]:
    return list(csv.DictReader(ROWS.open())) if ROWS.exists() else []


def work(rows: list[Row], power: float) -> NDArray[np.float64]:
    """Events and calls of each row, as many more as its host is slower."""
    events, calls, took = (np.array([float(row[name]) for row in rows]) for name in ("events", "calls", "recorded_ns"))
    return np.stack([events, calls], 1) * ((took / events / USUAL_NS) ** power)[:, None]


def fitted(rows: list[Row], power: float) -> tuple[NDArray[np.float64], float]:
    """Coefficients, and the root of the mean square of the relative errors."""
    step_ns = np.array([float(row["step_ns"]) for row in rows])
    found, rest = nnls(work(rows, power) / step_ns[:, None], np.ones(len(rows)))
    return found, rest / len(rows) ** 0.5


def errors(rows: list[Row], found: NDArray[np.float64], power: float) -> list[float]:
    step_ns = np.array([float(row["step_ns"]) for row in rows])
    return [float(e) for e in 100 * (work(rows, power) @ found / step_ns - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", nargs=2, metavar=("MACHINE", "FOLDER"))
    parser.add_argument("--held", action="store_true", help="what is added is held out")
    asked = parser.parse_args()
    if asked.add:
        add(asked.add[0], Path(asked.add[1]), asked.held)
        return
    rows = read()
    mine, held = ([row for row in rows if row["held"] == mark] for mark in "01")
    power = min((n / 20 for n in range(21)), key=lambda p: fitted(mine, p)[1])
    found, rest = fitted(mine, power)
    names = sorted({row["name"] for row in mine})
    left_out = [error for name in names for error in
                errors([r for r in mine if r["name"] == name],
                       fitted([r for r in mine if r["name"] != name], power)[0], power)]  # fmt: skip
    print(f"EVENT_NS {found[0]:.0f}, CALL_NS {found[1]:.0f}, BELIEVED {power:.2f}: root mean square {100 * rest:.1f}%")
    print(f"programs left out one at a time: {statistics.mean(map(abs, left_out)):.1f}% mean over {len(mine)} rows")
    if held:
        away = errors(held, found, power)
        for row, error in zip(held, away, strict=True):
            took = float(row["step_ns"]) / 1e6
            print(f"  {row['name']:<14}machine {row['machine']:<6}{took:>7.2f} ms{error:>+7.1f}%")
        print(f"held out: {statistics.mean(map(abs, away)):.1f}% mean over {len(held)} rows")
    if SHARED.is_dir():
        steps = {row["name"]: float(row["loop_step_wall_ns"]) for row in csv.DictReader((SHARED / "steps.csv").open())}
        there = [row_of(SHARED / name, steps[name], name=name) for name in BOUND_BY_HOST]
        told = zip(BOUND_BY_HOST, errors(there, found, power), strict=True)
        print("measured/replay: " + ", ".join(f"{name} {error:+.1f}%" for name, error in told))


if __name__ == "__main__":
    main()
