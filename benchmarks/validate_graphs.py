"""Are the graphs of programs right about what causes what? Known delays in four programs, one of two ranks.

    python benchmarks/validate_graphs.py                     on a GPU, if there is one; else on the CPU
    python benchmarks/validate_graphs.py --only ranks --delay 100% --repeats 12
    python benchmarks/measure_delays.py -o measured/         on a machine with PyTorch and NumPy alone ...
    python benchmarks/validate_graphs.py --measured measured/    ... and compared on another

Each program is validated as by `etude validate`: recorded, run again with delays that no profiler sees, and the changes
compared with those that its graph predicts. Then the same measurements are held against the graph without its order:
on a GPU the edges between kernels of a stream are removed, and the streams as lanes; on a CPU the same of threads. What
is left launches, and knows nothing of what waits for what.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
from delayed_programs import PROGRAMS, command

from etude.base.outputs import OutputPlace
from etude.capture import opening
from etude.decide.validate import Validated, ValidateOptions, predicted_again, validate
from etude.decide.validate.asked import length_of
from etude.decide.validate.scoring import PlaceResult
from etude.model.job import Job
from etude.model.schema import Why
from etude.model.trace import Trace

ORDER = (Why.STREAM, Why.PROGRAM, Why.EVENT, Why.TENSOR)


def without_order(job: Job) -> Job:
    """The graph with nothing that orders the work of a stream, or, without a device, of a thread."""
    return job.replace(traces=tuple(map(_without_order, job.traces)))


def _without_order(trace: Trace) -> Trace:
    on_device = (trace.cpu == 0).any()
    of_edge = np.repeat(np.arange(len(trace)), np.diff(trace.data_start))
    there = (trace.cpu[of_edge] == 0) if on_device else np.ones(len(of_edge), np.bool_)
    dropped = there & np.isin(trace.data_why, [int(why) for why in ORDER])
    kept = np.bincount(of_edge[~dropped], minlength=len(trace))
    lane = np.where(trace.cpu == 0, -1, trace.lane) if on_device else np.full(len(trace), -1)
    return trace.replace(
        data_start=np.append(0, np.cumsum(kept)), data=trace.data[~dropped], data_why=trace.data_why[~dropped],
        lane=lane.astype(np.int32),
    )  # fmt: skip


def show(name: str, found: Validated, broken: Validated) -> None:
    step = found.step_ns
    print(f"{name}: step {step['measured'] / 1e6:.2f} ms, predicted {step['predicted'] / 1e6:.2f} ms; score "
          f"{found.score:.2f}, without order {broken.score:.2f}")  # fmt: skip
    for one, other in zip(found.places, broken.places, strict=True):
        it = one.measured
        print(f"    {one.where:<28} injected {it.injected_ns / 1e6:>8.3f}  measured {it.change_ns / 1e6:>+8.3f} ± "
              f"{it.spread_ns / 1e6:<7.3f} predicted {one.predicted_ns / 1e6:>+8.3f} ({_said(one)})"
              f"   without order {other.predicted_ns / 1e6:>+8.3f} ({_said(other)})", flush=True)  # fmt: skip


def _said(one: PlaceResult) -> str:
    return "yes" if one.within else "NO"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PROGRAMS, action="append")
    parser.add_argument("--delay", action="append", help="of `etude validate`; by default 50%%")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("-o", "--out", type=Path, help="folder for recordings and results")
    parser.add_argument("--measured", type=Path, help="folder of `measure_delays.py`: nothing is run")
    given = parser.parse_args()
    options = ValidateOptions(delays=tuple(map(length_of, given.delay or ["50%"])), repeats=given.repeats)
    right = right_broken = total = 0
    with tempfile.TemporaryDirectory() as place:
        for name in given.only or PROGRAMS:
            folder = (given.measured or given.out or Path(place)) / name
            if given.measured is None:
                folder.parent.mkdir(parents=True, exist_ok=True)
                validate(command(name, Path(place)), options, OutputPlace(folder, force=True))
            record, job = json.loads((folder / "validate.json").read_bytes()), opening.open(folder / "run")
            found, broken = predicted_again(record, job), predicted_again(record, without_order(job))
            show(name, found, broken)
            right += sum(one.within for one in found.places)
            right_broken += sum(one.within for one in broken.places)
            total += len(found.places)
    print(f"all: {right} of {total} changes predicted within 15% ({right / total:.0%}), without order {right_broken} "
          f"({right_broken / total:.0%})")  # fmt: skip


if __name__ == "__main__":
    main()
