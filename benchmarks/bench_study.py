"""What a study costs beside its commands: 1,000 points of a command that does next to nothing.

    python benchmarks/bench_study.py [--points N] [--workers N]

Prints milliseconds a point of this process with the command line, of the command alone, of workers, and what a second
run of the same study takes, of which every answer is known.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

from etude.cli.study import executed
from etude.study import study

STUDY = """
run: ["systems show {name} --json"]
sweep: {name: [dgx-h100, dgx-a100], i: [INDICES]}
files: {"point-{i}.txt": "{i}"}
metrics: {levels: len(levels)}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        indices = ", ".join(map(str, range(given.points // 2)))
        (folder / "points.yaml").write_text(STUDY.replace("INDICES", indices))
        executed(["systems", "show", "dgx-h100", "--json"])
        begin = time.perf_counter()
        for _ in range(100):
            executed(["systems", "show", "dgx-h100", "--json"])
        alone = (time.perf_counter() - begin) / 100
        os.chdir(folder)
        rows = {"the command alone": alone}
        for name, options in (
            ("in this process", {"out": folder / "a", "execute": executed}),
            ("again, all known", {"out": folder / "a", "execute": executed}),
            (f"{given.workers} workers", {"out": folder / "b", "workers": given.workers}),
        ):
            begin = time.perf_counter()
            found = study(folder / "points.yaml").outcome(**options)
            rows[name] = (time.perf_counter() - begin) / len(found.points)
            assert not any(row["error"] for row in found.points)
        for name, seconds in rows.items():
            print(f"{name:22} {1e3 * seconds:7.2f} ms a point")
        print(f"{'overhead':22} {1e3 * (rows['in this process'] - alone):7.2f} ms a point")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
