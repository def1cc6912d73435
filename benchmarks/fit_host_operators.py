"""What the host of a GPU takes for an operator of an eager program that it bounds, from recordings.

    python benchmarks/record_foreign.py -o recorded/                       on a machine with a GPU
    python benchmarks/fit_host_operators.py recorded/ [../shared/measured/hf]

A program counts if its device is busy for at most 60% of a step and nothing of it is compiled. The figure is the median
of their steps without a profiler over their kernels, copies and sets; `predict --program` names it where no recording
is given. Errors leave out the program itself, and are relative to the nearer of the steps before
and after the recording; folders after the first are predicted with the figure of the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import NamedTuple

import numpy as np
from nearer import error

import etude
from etude.capture.ingest.runs import WantedTimes

BOUND = 0.6
"""Most of a step that the device may be busy."""


class Program(NamedTuple):
    name: str
    launches: float
    before_ns: float
    after_ns: float
    busy: float

    @property
    def host_ns(self) -> float:
        return (self.before_ns + self.after_ns) / 2 / self.launches

    def wrong(self, host_ns: float) -> float:
        return error(host_ns * self.launches, self.before_ns, self.after_ns)


def sides(folder: Path) -> tuple[float, float]:
    """Steps without a profiler: timed around the recording, or as its manifest has them."""
    reference = folder / "reference.json"
    if reference.is_file():
        told = json.loads(reference.read_text())
        return told["before_ns"], told["after_ns"]
    told = json.loads(next(folder.glob("*manifest.json")).read_text())["steps"]["unprofiled"]
    return told.get("before", told)["step_ns"], told.get("after", told)["step_ns"]


def program(folder: Path) -> Program:
    trace = etude.open(folder, times=WantedTimes(as_recorded=True)).traces[0]
    steps = len(np.unique(trace.step[trace.step >= 0])) or 1
    device = trace.cpu == 0
    before, after = sides(folder)
    busy = float(trace.duration_ns[device].sum()) / steps / min(before, after)
    return Program(folder.name, int(device.sum()) / steps, before, after, busy)


def shown(one: Program, host_ns: float) -> float:
    wrong = one.wrong(host_ns)
    print(f"{one.name:<24}{one.launches:>8.0f}{one.busy:>7.0%}{one.before_ns / 1e6:>9.2f}{one.after_ns / 1e6:>9.2f}"
          f"{one.host_ns / 1000:>8.1f}{wrong:>+8.1%}")  # fmt: skip
    return abs(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path, nargs="+")
    given = parser.parse_args()
    figure = 0.0
    print(f"{'program':<24}{'a step':>8}{'busy':>7}{'before':>9}{'after':>9}{'us':>8}{'error':>8}")
    for number, place in enumerate(given.recorded):
        folders = sorted({path.parent for path in place.glob("*/*manifest.json")})
        bound = [one for one in map(program, folders) if one.busy <= BOUND and "compiled" not in one.name]
        others = {one.name: [b.host_ns for b in bound if b is not one] for one in bound}
        errors = [shown(one, figure if number else statistics.median(others[one.name])) for one in bound]
        figure = figure if number else statistics.median(one.host_ns for one in bound)
        print(f"{place}: {figure / 1000:.1f} us an operator; median {statistics.median(errors):.1%} off, "
              f"worst {max(errors):.1%}, of {len(errors)}")  # fmt: skip


if __name__ == "__main__":
    main()
