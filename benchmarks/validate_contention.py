"""Operators beside one another on one H200, and operators on an H200 with cores held, by `etude score`.

python benchmarks/validate_contention.py [FOLDER of pairs.csv and sms_held.csv] [MORE.csv ...]

No constant is fitted by a search, and none is held out of sight either. Blocks come from tiles, times alone from the
file. Both files were read before the model was written; attention's one block on a core, the rule that of tiles alike
the largest is taken, `core_bandwidth` and the compute part of products that the memory bounds were chosen while
looking at the errors of all their rows. `contention_split.csv` halves the pairs by the hash of their names, and both
halves were seen. `h200_pairs.csv` was measured by `measure_contention.py` in a run of its own, with seven operators
that the files do not have, while the model was written; the launches seen there confirmed the tiles, and the last two
choices were made after its errors were known, for the sake of `sms_held.csv` (its own median went from 5.3% to 5.7%).
`h200_pairs_later.csv` has twelve operators that none of these has, each beside each, chosen and measured when the model
stood: nothing was changed after its errors were known.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any

from etude.decide.score import score

HERE = Path(__file__).parent
SHARED = HERE.parent.parent / "shared/measured/h200_extra/contention"


def key(row: dict[str, Any]) -> str:
    return "|".join(sorted((row["op"], row["beside"])))


def error(row: dict[str, Any]) -> float:
    return abs(row["predicted"] / row["measured"] - 1)


def line(name: str, rows: list[dict[str, Any]]) -> None:
    if not rows:
        return
    found = sorted(map(error, rows))
    slowed = [error(r) for r in rows if r["measured"] > 1.1]
    more = f", of {len(slowed)} slower by a tenth or more {median(slowed):.1%}" if slowed else ""
    print(f"  {name:<34}{len(rows):5} rows: median {median(found):6.1%}, mean {mean(found):6.1%}, "
          f"p90 {found[int(0.9 * (len(found) - 1))]:6.1%}{more}")  # fmt: skip


def slowdowns(path: Path) -> list[dict[str, Any]]:
    """Rows that were predicted: the operator, what was beside it, and both slowdowns."""
    given = list(csv.DictReader(path.open()))
    found = [(given[row["row"] - 1], row) for row in score(path, kind="contention").rows if "predicted" in row]
    return [
        {"op": own["op"], "beside": own.get("background") or own.get("holder"),
         **{part: row[part]["time_s"] * 1e9 / float(own["op_alone_ns"]) for part in ("measured", "predicted")}}
        for own, row in found
    ]  # fmt: skip


def report(path: Path, held: set[str]) -> None:
    print(path.name)
    rows = slowdowns(path)
    line("all", rows)
    line("half of the pairs, by hash", [r for r in rows if key(r) in held])
    line("slower than 3 times: a queue", [r for r in rows if r["measured"] > 3])
    line("copies to or from the host", [r for r in rows if "h2d" in key(r) or "d2h" in key(r)])
    worst = sorted(rows, key=error)[-5:]
    print(
        "  worst: "
        + "; ".join(f"{r['op']} beside {r['beside']} {r['measured']:.2f} / {r['predicted']:.2f}" for r in worst)
    )


def main() -> None:
    given = [Path(a) for a in sys.argv[1:]]
    folder = given[0] if given and given[0].is_dir() else SHARED
    ours = [HERE / "h200_pairs.csv", HERE / "h200_pairs_later.csv"]
    files = [folder / "pairs.csv", folder / "sms_held.csv", *ours, *(p for p in given if p.is_file())]
    held = {row["pair"] for row in csv.DictReader((HERE / "contention_split.csv").open()) if row["use"] == "held"}
    for path in files:
        if path.is_file():
            report(path, held)
        else:
            print(f"{path}: not there")


if __name__ == "__main__":
    main()
