"""Copies over the link, files, checkpoints and layers streamed from the host on one H200, against `etude ops offload`.

python benchmarks/validate_offload.py [FOLDER of transfer.csv, disk.csv, checkpoint.csv, layer_stream.csv]

Constants are those of `h200-server`, of the device's `host_link` and, of checkpoints, of `etude.cost.tiers.measured`.
They were read off by hand with all rows in sight, and read-ahead and the cost of a call were added after a look at
the errors: nothing is held out. Rows with odd numbers are shown apart, for comparison only. Copies between buffers of
the host are not predicted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import mean, median

from etude.cost.tiers import offload_rows
from etude.machine import open_system

SHARED = Path(__file__).resolve().parent.parent.parent / "shared/measured/h200_extra/offload"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED
    system = open_system("h200-server")
    every: list[float] = []
    for name in ("transfer", "disk", "checkpoint", "layer_stream"):
        rows = offload_rows(system, folder / f"{name}.csv")
        of_file = [abs(r["predicted"] / r["measured"] - 1) for r in rows]
        odd = [error for r, error in zip(rows, of_file, strict=True) if r["row"] % 2]
        every += of_file
        print(f"{name + '.csv':<18}{len(rows):4} values: mean {mean(of_file):6.1%}, median {median(of_file):6.1%}; "
              f"odd rows {len(odd):3}: mean {mean(odd):6.1%}")  # fmt: skip
        for what in dict.fromkeys(r["what"] for r in rows):
            part = [e for r, e in zip(rows, of_file, strict=True) if r["what"] == what]
            print(f"  {what:<32}{len(part):4}  mean {mean(part):6.1%}, worst {max(part):6.1%}")
    print(f"all {len(every)}: mean {mean(every):.1%}, median {median(every):.1%}")


if __name__ == "__main__":
    main()
