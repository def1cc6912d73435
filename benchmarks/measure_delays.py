"""Measures what delays change in the programs of `validate_graphs.py`, on a machine that has PyTorch and NumPy alone.

    python benchmarks/measure_delays.py -o measured/ [--only decoder] [--repeats 8]

For each a recording (`run/`) and `validate.json` without predictions, which `validate_graphs.py --measured` makes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections import Counter
from pathlib import Path

from delayed_programs import PROGRAMS, command

from etude.capture.collect import Moment
from etude.decide.validate.measuring import DelayLength, ValidateOptions, record_marked, run_with_delays
from etude.decide.validate.pairs import measured_change, undelayed_step_ns
from etude.decide.validate.places import choose_places


def moments_of(run: Path, steps: int) -> dict[int, list[Moment]]:
    """Rank -> moments that come once in each recorded step."""
    found = {}
    for rank, file in enumerate(sorted(run.glob("*.kineto.json.gz"))):
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        marks = Counter(e["name"] for e in events if e.get("cat") in ("user_annotation", "cpu_op"))
        moments = {Moment.of_mark(name): count for name, count in marks.items()}
        found[rank] = sorted(one for one, count in moments.items() if one is not None and count == steps)
    return found


def measure(name: str, folder: Path, options: ValidateOptions) -> None:
    with tempfile.TemporaryDirectory() as place:
        line = command(name, Path(place))
        record_marked(line, folder / "run", options)
        places = choose_places(moments_of(folder / "run", options.steps))
        manifest = json.loads(next((folder / "run").glob("*manifest.json")).read_text())
        step_ns = manifest["steps"]["unprofiled"]["step_ns"]
        delays = [one.delay(options.delays[0].of_step(step_ns)) for one in places]
        found = run_with_delays(line, delays, options)
    rows = []
    for one, pairs in zip(places, found.pairs, strict=True):
        it = measured_change(pairs)
        rows.append({"where": one.where, "injected_ns": it.injected_ns, "measured_ns": it.change_ns,
                     "spread_ns": it.spread_ns, "pairs": it.pairs})  # fmt: skip
    told = {"places": rows, "step_ns": {"measured": undelayed_step_ns(found.blocks, options.steps)}, "runs": found.runs}
    (folder / "validate.json").write_text(json.dumps(told, indent=1) + "\n")
    print(name, json.dumps(told), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--only", choices=PROGRAMS, action="append")
    parser.add_argument("--repeats", type=int, default=8)
    given = parser.parse_args()
    options = ValidateOptions(delays=(DelayLength(share=0.5),), repeats=given.repeats)
    for name in given.only or PROGRAMS:
        (given.out / name).mkdir(parents=True, exist_ok=True)
        measure(name, given.out / name, options)


if __name__ == "__main__":
    main()
