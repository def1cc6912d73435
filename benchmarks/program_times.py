"""What Etude says of programs that it recorded, against steps that were timed without a profiler.

    python benchmarks/record_foreign.py -o recorded/       on a machine with a GPU: records programs of other people
    python benchmarks/program_times.py recorded/           anywhere

A row for each: the step without a profiler just before and after; the recorded step; the step by the light window, with
the un-profiled steps withheld (`--no-anchor`) and with those of the manifest; by the full window, with those of the
manifest (`estimated`) and with nothing else (`alone`, with the range, and `!` where that does not hold the reference);
and the share of a step that the device is busy: as Etude says, by the time that it was busy in the full window and the
step without a profiler (`truth`), and in a recording of the device alone at the end, whose own steps may be longer.
The constants of `alone` were fitted to programs whose names begin with g, l or m; the others are held out.

An error is relative to the nearer of the two references where they differ by more than 5%, else to their mean.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

from nearer import error

from etude.analyse.program_figures import program_figures
from etude.capture import opening
from etude.capture.ingest.runs import WantedTimes

FITTED = "glm"
"""First letters of the programs that constants of an estimate were fitted to."""


def figures(folder: Path, times: WantedTimes, *, light: bool = True) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "run"
        shutil.copytree(folder, copy)
        if not light:
            for file in copy.glob("*.light.json.gz"):
                file.unlink()
        for file in copy.glob("reference.json"):
            file.unlink()
        return program_figures(opening.open_run(copy, times=times))


def holds(found: dict[str, Any], before_ns: float, after_ns: float) -> bool:
    """Whether the range of an estimate holds the step to which its error is relative."""
    truth = found["step_ns"] / (1 + error(found["step_ns"], before_ns, after_ns))
    return bool(found["low"]["step_ns"] <= truth <= found["high"]["step_ns"])


def costs(folder: Path, before_ns: float, after_ns: float) -> dict[str, float]:
    """By how much a step of the light window is longer than one without a profiler, and one with the driver's calls."""
    window = json.loads(next(folder.glob("*manifest.json")).read_text())["windows"][0]
    found = {"light window": window} | ({"with the calls of the driver": window["calls"]} if "calls" in window else {})
    return {name: error(one["step_ns"], before_ns, after_ns) for name, one in found.items()}


def told(name: str, errors: list[float]) -> str:
    return f"{name}: median {statistics.median(errors):.1%}, worst {max(errors):.1%}, of {len(errors)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    ways = {
        "no anchor": (WantedTimes(anchor=False), True),
        "anchored": (WantedTimes(), True),
        "estimated": (WantedTimes(), False),
        "alone": (WantedTimes(anchor=False), False),
    }
    found: dict[str, list[float]] = {name: [] for name in (*ways, "busy", "busy, alone", "recorded", "sides")}
    found |= {"alone, fitted": [], "alone, held out": []}
    held = []
    longer: dict[str, list[float]] = {}
    heads = "".join(f"{name:>16}" for name in ways)
    print(
        f"{'program':<16}{'before':>9}{'after':>9}{'recorded':>10}{heads}{'range':>18}{'busy':>7}{'truth':>7}{'alone':>7}"
    )
    for folder in sorted(path.parent for path in given.folder.glob("*/reference.json")):
        reference = json.loads((folder / "reference.json").read_text())
        before, after = reference["before_ns"], reference["after_ns"]
        found["sides"].append(max(before, after) / min(before, after) - 1)
        for name, one in costs(folder, before, after).items():
            longer.setdefault(name, []).append(one)
        as_recorded = figures(folder, WantedTimes(as_recorded=True))
        recorded = as_recorded["step_ns"]
        found["recorded"].append(abs(error(recorded, before, after)))
        got = {name: figures(folder, times, light=light) for name, (times, light) in ways.items()}
        cells = ""
        for name, one in got.items():
            wrong = error(one["step_ns"], before, after)
            found[name].append(abs(wrong))
            cells += f"{one['step_ns'] / 1e6:>9.2f}{wrong:>+7.1%}"
        found["alone, fitted" if folder.name[0] in FITTED else "alone, held out"].append(found["alone"][-1])
        alone = got["alone"]
        held.append(holds(alone, before, after))
        low, high = (alone[end]["step_ns"] / 1e6 for end in ("low", "high"))
        cells += f"{f'{low:.1f} to {high:.1f}' + ('' if held[-1] else ' !'):>18}"
        program = got["no anchor"]
        unprofiled = program["step_ns"] / (1 + error(program["step_ns"], before, after))
        busy, truth = program["busy_share"], as_recorded["busy_share"] * recorded / unprofiled
        alone_share = reference.get("busy_alone", reference["busy_share"])
        found["busy"].append(abs(busy - truth))
        found["busy, alone"].append(abs(busy - alone_share))
        print(f"{folder.name:<16}{before / 1e6:>9.2f}{after / 1e6:>9.2f}{recorded / 1e6:>10.2f}{cells}{busy:>7.0%}"
              f"{truth:>7.0%}{alone_share:>7.0%}")  # fmt: skip
    for name, errors in found.items():
        if errors:
            print(told(name, errors))
    for name, shares in longer.items():
        print(f"{name}: {statistics.median(shares):+.1%} a step in the median, of {len(shares)}")
    print(f"the range of `alone` holds the reference in {sum(held)} of {len(held)}")


if __name__ == "__main__":
    main()
