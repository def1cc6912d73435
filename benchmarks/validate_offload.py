"""Copies over the link, files, checkpoints and layers streamed from the host on one H200, by `etude score`.

python benchmarks/validate_offload.py [FOLDER of transfer.csv, disk.csv, checkpoint.csv, layer_stream.csv]

Constants are those of `h200-server`, of the device's `host_link` and, of checkpoints, of `etude.cost.tiers.measured`.
They were read off by hand with all rows in sight, and read-ahead and the cost of a call were added after a look at
the errors: nothing is held out. Rows with odd numbers are shown apart, for comparison only. Copies between buffers of
the host are not predicted.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from statistics import mean, median

from etude.decide.score import score

SHARED = Path(__file__).resolve().parent.parent.parent / "shared/measured/h200_extra/offload"


def name_of(row: dict[str, str]) -> str:
    """What a row was measured of."""
    words = ("direction", "memory") if "direction" in row else ("place", "op", "mode") if "mode" in row else ("method",)
    return " ".join(row[word] for word in words if word in row) or "double buffered"


def values(path: Path) -> list[tuple[int, str, float]]:
    """(row from 0, what, absolute error) of each value that was measured."""
    given = list(csv.DictReader(path.open(newline="")))
    found = []
    for row in score(path, kind="offload").rows:
        for figure, measured in row.get("measured", {}).items():
            place = row["row"] - 1
            what = name_of(given[place]) if figure == "time_s" else figure.removesuffix("_s")
            found.append((place, what, abs(row["predicted"][figure] / measured - 1)))
    return found


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED
    every: list[float] = []
    for name in ("transfer", "disk", "checkpoint", "layer_stream"):
        rows = values(folder / f"{name}.csv")
        of_file, odd = [error for *_, error in rows], [error for place, _, error in rows if place % 2]
        every += of_file
        print(f"{name + '.csv':<18}{len(rows):4} values: mean {mean(of_file):6.1%}, median {median(of_file):6.1%}; "
              f"odd rows {len(odd):3}: mean {mean(odd):6.1%}")  # fmt: skip
        for what in dict.fromkeys(what for _, what, _ in rows):
            part = [error for _, own, error in rows if own == what]
            print(f"  {what:<32}{len(part):4}  mean {mean(part):6.1%}, worst {max(part):6.1%}")
    print(f"all {len(every)}: mean {mean(every):.1%}, median {median(every):.1%}")


if __name__ == "__main__":
    main()
