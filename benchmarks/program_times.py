"""What Etude says of programs that it recorded, against steps that were timed without a profiler.

    python benchmarks/record_foreign.py -o recorded/       on a machine with a GPU: records programs of other people
    python benchmarks/program_times.py recorded/           anywhere

A row for each: the step without a profiler just before and after; the recorded step; the step by the light window, with
the un-profiled steps withheld (`--no-anchor`) and with those of the manifest; by the recording alone, with those of the
manifest; and the share of a step that the device is busy, against a recording with the activities of the device alone.
An error is relative to the nearer of the two references where they differ by more than 5%, else to their mean.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path

from etude.analyse.program_figures import program_figures
from etude.capture import opening
from etude.capture.ingest.runs import Times


def figures(folder: Path, times: Times, *, light: bool = True) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "run"
        shutil.copytree(folder, copy)
        if not light:
            for file in copy.glob("*.light.json.gz"):
                file.unlink()
        for file in copy.glob("reference.json"):
            file.unlink()
        return program_figures(opening.open_run(copy, times=times))


def error(step_ns: float, before_ns: float, after_ns: float) -> float:
    low, high = sorted((before_ns, after_ns))
    if high <= 1.05 * low:
        return step_ns / ((low + high) / 2) - 1
    return min((step_ns / low - 1, step_ns / high - 1), key=abs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    found: dict[str, list[float]] = {"no anchor": [], "anchored": [], "estimated": [], "busy": [], "recorded": []}
    found["before and after"] = []
    print(f"{'program':<16}{'before':>9}{'after':>9}{'recorded':>10}{'no anchor':>16}{'anchored':>16}{'estimated':>16}"
          f"{'busy':>7}{'alone':>7}")  # fmt: skip
    for folder in sorted(path.parent for path in given.folder.glob("*/reference.json")):
        told = json.loads((folder / "reference.json").read_text())
        before, after = told["before_ns"], told["after_ns"]
        found["before and after"].append(max(before, after) / min(before, after) - 1)
        recorded = figures(folder, Times(as_recorded=True))["step_ns"]
        ways = {
            "no anchor": figures(folder, Times(anchor=False)),
            "anchored": figures(folder, Times()),
            "estimated": figures(folder, Times(), light=False),
        }
        found["recorded"].append(abs(error(recorded, before, after)))
        cells = ""
        for name, one in ways.items():
            wrong = error(one["step_ns"], before, after)
            found[name].append(abs(wrong))
            cells += f"{one['step_ns'] / 1e6:>9.2f}{wrong:>+7.1%}"
        busy = ways["anchored"]["busy_share"]
        found["busy"].append(abs(busy - told["busy_share"]))
        print(f"{folder.name:<16}{before / 1e6:>9.2f}{after / 1e6:>9.2f}{recorded / 1e6:>10.2f}{cells}{busy:>7.0%}"
              f"{told['busy_share']:>7.0%}")  # fmt: skip
    for name, errors in found.items():
        if errors:
            print(f"{name}: median {statistics.median(errors):.1%}, worst {max(errors):.1%}, of {len(errors)}")


if __name__ == "__main__":
    main()
