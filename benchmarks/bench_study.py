"""What a study costs beside its commands: 1,000 points of a command that does next to nothing.

    python benchmarks/bench_study.py [--points N] [--workers N]

Prints milliseconds a point of this process with the command line, of the command alone, of workers, and what a second
run of the same study takes, of which every answer is known. CPU time, but with workers the time that passed.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

from etude.decide.study import study
from etude.surface.cli.executing import executed

SYSTEM = "name: one\ndevice: h100\nlevels:\n  - {name: net, kind: switch, size: 8, bandwidth: 100GB/s, latency: %sns}\n"
STUDY = """
run: ["systems show net-{i}.yaml --json"]
sweep: {i: [INDICES]}
files:
  net-{i}.yaml:
    name: one
    device: h100
    levels: [{name: net, kind: switch, size: 8, bandwidth: 100GB/s, latency: "{500 + i}ns"}]
metrics: {levels: len(levels)}
"""
"""Every point has a system of its own, so that no answer is that of another point."""
ALONE = 100
"""Times that the command is run by itself."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        indices = ", ".join(map(str, range(given.points)))
        (folder / "points.yaml").write_text(STUDY.replace("INDICES", indices))
        os.chdir(folder)
        for i in range(ALONE + 1):
            (folder / f"net-{i}.yaml").write_text(SYSTEM % (500 + i))
        executed(["systems", "show", f"net-{ALONE}.yaml", "--json"])
        begin = time.process_time()
        for i in range(ALONE):
            executed(["systems", "show", f"net-{i}.yaml", "--json"])
        alone = (time.process_time() - begin) / ALONE
        for i in range(ALONE + 1):
            (folder / f"net-{i}.yaml").unlink()
        rows = {"the command alone": alone}
        for name, options in (
            ("in this process", {"out": folder / "a", "execute": executed}),
            ("again, all known", {"out": folder / "a", "execute": executed}),
            (f"{given.workers} workers", {"out": folder / "b", "workers": given.workers}),
        ):
            clock = time.perf_counter if "workers" in options else time.process_time
            begin = clock()
            found = study(folder / "points.yaml").outcome(**options)
            rows[name] = (clock() - begin) / len(found.points)
            assert not any(row["error"] for row in found.points)
            assert found.ran == (0 if name.startswith("again") else given.points)
        for name, seconds in rows.items():
            print(f"{name:22} {1e3 * seconds:7.2f} ms a point")
        print(f"{'overhead':22} {1e3 * (rows['in this process'] - alone):7.2f} ms a point")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
