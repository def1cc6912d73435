"""Power and energy against measurements, on what was held out of the fits (`fit_power.py`).

    python benchmarks/validate_energy.py [--each]      # ../shared/measured

The rows go through `etude score`, and times are predicted too.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np

from etude.decide.score import score

HERE = Path(__file__).resolve().parent
FITTED = ("1500", "900")
TEXT = ("lm-arena-chat", "gpqa")
SAID = {"power_w": "mean_w", "time_s": "call_ns", "energy_j_per_token": "energy_per_token_j"}
"""Names of figures in what is printed."""
MEASURED = HERE.parent.parent / "shared" / "measured"


def column(name: str, key: str, use: str = "held") -> set[str]:
    with (HERE / name).open(newline="") as file:
        return {row[key] for row in csv.DictReader(file) if row.get("use", use) == use}


def errors(records: list[dict[str, Any]], figure: str) -> np.ndarray:
    pairs = [(r["predicted"][figure], r["measured"].get(figure, 0.0)) for r in records if "predicted" in r]
    return np.array([abs(p / m - 1) for p, m in pairs if m])


def scored(path: Path) -> list[dict[str, Any]]:
    """The scored rows of a file, each with the `name` of its row."""
    with path.open(newline="") as file:
        given = list(csv.DictReader(file))
    return [{"name": own.get("name", ""), **row} for own, row in zip(given, score(path).rows, strict=True)]


def told(what: str, found: np.ndarray) -> None:
    if len(found):
        half, most = np.percentile(found, [50, 90])
        print(f"  {what:44s} {len(found):4d} rows  mean {found.mean():6.1%}  median {half:6.1%}  90th {most:6.1%}")


def counter(each: bool) -> None:
    """The H200 that the constants were fitted to."""
    path = MEASURED / "h200_extra/energy/energy.csv"
    if not path.is_file():
        print(f"{path} is not there")
        return
    seen, names = [r for r in scored(path) if "predicted" in r], column("h200_energy_split.csv", "name")
    print("an H200's energy counter")
    for figure in ("power_w", "energy_j_per_call"):
        told(f"{SAID.get(figure, figure)}, held out", errors([r for r in seen if r["name"] in names], figure))
        told(f"{SAID.get(figure, figure)}, of the fit", errors([r for r in seen if r["name"] not in names], figure))
    for r in seen if each else ():
        print(f"    {r['name']:28s} {r['predicted']['power_w']:7.1f} W for {r['measured']['power_w']:7.1f}")


def clocks(each: bool) -> None:
    """Another H200, measured with measure_power.py: ops of which most are in no fit, then clocks and caps."""
    path = HERE / "h200_power.csv"
    with path.open(newline="") as file:
        given = list(csv.DictReader(file))
    found = scored(path)
    nominal = {r["name"]: r for g, r in zip(given, found, strict=True) if not g["clock_mhz"] and not g["cap_w"]}
    print("another H200, as it is")
    for figure in ("power_w", "time_s"):
        told(SAID[figure], errors(list(nominal.values()), figure))
    over: dict[str, list[list[float]]] = {}
    for row, record in zip(given, found, strict=True):
        first = nominal.get(row["name"])
        if first is None or first is record:
            continue
        kind = (
            "under a cap" if row["cap_w"] else "at a clock of the fit" if row["clock_mhz"] in FITTED else "at a clock"
        )
        off = [
            record["predicted"][f] / first["predicted"][f] / (record["measured"][f] / first["measured"][f]) - 1
            for f in ("time_s", "power_w", "energy_j_per_call")
        ]
        over.setdefault(kind, []).append(off)
        if each:
            shown = "  ".join(f"{what} {e:+6.1%}" for what, e in zip(("time", "power", "energy"), off, strict=True))
            print(f"    {row['name']:28s} {row['clock_mhz'] or row['cap_w'] + ' W':>6s}  {shown}")
    for kind, off in over.items():
        for number, figure in enumerate(("time", "power", "energy")):
            told(f"{kind}: {figure} over that as it is", np.abs(np.array(off)[:, number]))


def engines() -> None:
    """Rows of vLLM, by device and by model."""
    path = MEASURED / "ml_energy_llm.csv"
    if not path.is_file():
        print(f"{path} is not there")
        return
    with path.open(newline="") as file:
        given = list(csv.DictReader(file))
    pairs = list(zip(given, scored(path), strict=True))
    fitted = column("serving_split.csv", "model", "fit")
    print(f"vLLM: {sum('predicted' in r for _, r in pairs)} of {len(pairs)} rows predicted")
    for tasks, what in ((TEXT, "text"), (("image-chat", "video-chat"), "pictures")):
        for gpu in ("", "H100", "B200"):
            for use in ("held out", "of the fit"):
                some = [
                    r for g, r in pairs
                    if g["task"] in tasks and g["gpu"].startswith(gpu) and (g["model"] in fitted) == (use != "held out")
                ]  # fmt: skip
                for figure in ("power_w", "energy_j_per_token"):
                    told(f"{what} {gpu}, {SAID[figure]}, {use}", errors(some, figure))
    print("text, median error of the power by model held out")
    models = sorted({g["model"] for g, _ in pairs if g["task"] in TEXT} - fitted)
    for model in models:
        told(model, errors([r for g, r in pairs if g["model"] == model and g["task"] in TEXT], "power_w"))


def main() -> int:
    each = "--each" in sys.argv[1:]
    counter(each)
    clocks(each)
    engines()
    return 0


if __name__ == "__main__":
    sys.exit(main())
