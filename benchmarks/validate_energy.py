"""Power and energy against measurements, on what was held out of the fits (`fit_power.py`).

    python benchmarks/validate_energy.py [--each]      # ../shared/measured

The rows go through `etude energy --rows`, and times are predicted too.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np

from etude.predict.energy import energy_rows

HERE = Path(__file__).resolve().parent
MEASURED = HERE.parent.parent / "shared" / "measured"


def held(name: str, key: str) -> set[str]:
    with (HERE / name).open(newline="") as file:
        return {row[key] for row in csv.DictReader(file) if row["use"] == "held"}


def errors(records: list[dict[str, Any]], figure: str) -> np.ndarray:
    pairs = [(r["predicted"][figure], r["measured"].get(figure, 0.0)) for r in records if "predicted" in r]
    return np.array([abs(p / m - 1) for p, m in pairs if m])


def told(what: str, found: np.ndarray) -> None:
    half, most = np.percentile(found, [50, 90])
    print(f"  {what:24s} {len(found):4d} rows  mean {found.mean():6.1%}  median {half:6.1%}  90th {most:6.1%}")


def main() -> int:
    each = "--each" in sys.argv[1:]
    for title, file, split, key, figures in (
        ("H200, energy counter", "h200_extra/energy/energy.csv", "h200_energy_split.csv", "name",
         ("mean_w", "energy_j_per_call")),
        ("vLLM, text tasks", "ml_energy_llm.csv", "ml_energy_split.csv", "model", ("mean_w", "energy_per_token_j")),
    ):  # fmt: skip
        path = MEASURED / file
        if not path.is_file():
            print(f"{title}: {path} is not there")
            continue
        records, names = energy_rows(path), held(split, key)
        seen = [r for r in records if "predicted" in r]
        apart = sum(r["name"] in names for r in seen)
        print(f"{title}: {len(seen)} of {len(records)} rows predicted, {apart} held out")
        for figure in figures:
            told(figure, errors([r for r in seen if r["name"] in names], figure))
            told(f"{figure}, of the fit", errors([r for r in seen if r["name"] not in names], figure))
        for r in seen if each else ():
            shown = "  ".join(f"{r['predicted'][f]:.4g} for {r['measured'].get(f, 0):.4g}" for f in figures)
            print(f"    {r['name']:52s} {'held' if r['name'] in names else 'fit':5s} {shown}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
