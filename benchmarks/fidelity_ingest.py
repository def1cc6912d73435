"""Is the graph that `etude link` makes the right one? Its dependencies and durations alone must give the recorded run.

    python benchmarks/fidelity_ingest.py                                   # every capture of the reference data
    python benchmarks/fidelity_ingest.py kineto.json.gz run/ ...           # captures of your own: files, or folders
    python benchmarks/fidelity_ingest.py --pair HOST_BOUND GPU_BOUND       # two device traces of one program

**Fidelity**: recorded starts are thrown away, the graph is simulated, and its span is compared with the recorded one;
then again without the edges between lanes (launches, events, synchronisation, handovers, collectives), where the error
must grow: that of the span or, where one thread alone sets the span, that of the kernels' starts (`50% cut`). `late` is
the most by which a recorded node started before something that it waits for had ended.

**Causality**: one program, once limited by its host and once by its device. The graph of one run, with the device time
that each operator took in the other run and at the speed of that one's host, must give the time of the other run. It is
what `etude simulate FIRST --device-times-of SECOND` does.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etude.capture.ingest import causal, reading, runs
from etude.capture.ingest.runs import RankFiles
from etude.decide.score.kind import Item, ScoreRequest
from etude.decide.score.recordings import ScoredRecording, recorded_span_ns
from etude.decide.score.recordings import linked as linked_recording
from etude.decide.score.recordings import predict as predicted_pair
from etude.machine import open_system
from etude.make.transform.device_times import with_device_times
from etude.model.job import Job
from etude.model.schema import Why
from etude.model.trace import Trace
from etude.run.simulate.result import Simulated
from etude.run.simulate.run import simulate

I64 = NDArray[np.int64]
WITHIN_A_LANE = (Why.PROGRAM, Why.STREAM)


def shared() -> Path:
    return Path(os.environ.get("ETUDE_SHARED", Path(__file__).resolve().parents[2] / "shared"))


def captures(folder: Path, public: bool) -> dict[str, list[RankFiles]]:
    """Name -> files of each rank: each rank of a run by itself, and all of them together."""
    found: dict[str, list[RankFiles]] = {}
    for place in ("traces/h200", "traces/h200_pairs", "traces/torch_cpu"):
        for name, ranks in runs.runs_in(folder / place).items():
            add(found, name, ranks)
    for name in ("sync", "fsdp", "coll"):
        add(found, name, runs.find_run(folder / "oracle/chakra_official/h200_nccl" / name)[1])
    if public:
        for device in sorted(folder.glob("traces/public/*.kineto.json.gz")):
            found[device.name.removesuffix(".kineto.json.gz")] = [RankFiles(rank=None, device=device)]
    return found


def add(found: dict[str, list[RankFiles]], name: str, ranks: list[RankFiles]) -> None:
    if len(ranks) == 1:
        found[name] = [replace(ranks[0], rank=None)]
        return
    found |= {f"{name}.{files.rank}": [files] for files in ranks}
    found[f"{name} ({len(ranks)} ranks)"] = ranks


def linked(ranks: list[RankFiles]) -> Job:
    recorded = runs.WantedTimes(as_recorded=True)
    return causal.to_job("run", [runs.link_rank(replace(files, times=recorded)) for files in ranks])


def run(job: Job) -> Simulated:
    system = open_system("dgx-h100").resized(max(job.world_size, 16))
    return simulate(job.replace(timing=None), system, collective_times="recorded", fold=False)


def without_cross_lane(trace: Trace) -> Trace:
    keep = np.isin(trace.data_why, WITHIN_A_LANE)
    kept = np.concatenate([[0], np.cumsum(keep)])
    return trace.replace(
        data_start=kept[trace.data_start], data=trace.data[keep].copy(), data_why=trace.data_why[keep].copy()
    )


def latest_ns(job: Job) -> int:
    """By how much the recorded times contradict an edge at most."""
    assert job.timing is not None
    worst = 0
    for trace, start, end in zip(job.traces, job.timing.start_ns, job.timing.end_ns, strict=True):
        node = np.repeat(np.arange(len(trace)), np.diff(trace.data_start))
        worst = max(worst, int((end[trace.data] - start[node]).max(initial=0)))
    return worst


def kernel_errors_us(job: Job, simulated: Simulated) -> I64:
    """Simulated less recorded start of each device activity, both from the start of their rank."""
    assert job.timing is not None
    parts = []
    for i, trace in enumerate(job.traces):
        start = job.timing.block(i)[0]
        found = simulated.timing.block(i)[0]
        on_device = trace.cpu == 0
        parts.append(((found - (start - start.min()))[on_device]) / 1000)
    return np.concatenate(parts)


def fidelity(name: str, ranks: list[RankFiles]) -> dict[str, Any]:
    job = linked(ranks)
    whole = run(job)
    cut = run(job.replace(traces=tuple(without_cross_lane(t) for t in job.traces)))
    span = recorded_span_ns(job)
    errors = kernel_errors_us(job, whole)
    quantiles = np.percentile(errors, [5, 50, 95]) if len(errors) else np.zeros(3)
    return {
        "capture": name,
        "nodes": job.nodes,
        "recorded_ms": span / 1e6,
        "simulated_ms": whole.makespan_ns / 1e6,
        "error": whole.makespan_ns / span - 1,
        "cut": cut.makespan_ns / span - 1,
        "kernels": len(errors),
        "p5": quantiles[0],
        "p50": quantiles[1],
        "p95": quantiles[2],
        "cut_p50": float(np.median(kernel_errors_us(job, cut))) if len(errors) else 0.0,
        "late": latest_ns(job) / 1000,
    }


# -- causality ---------------------------------------------------------------------------------------------------------


def causality(first: Path, second: Path) -> dict[str, Any]:
    """The second run from the graph of the first: with the host of the first, and at the speed of the second's."""
    pair = tuple(ScoredRecording(reading.stem(path), (RankFiles(rank=None, device=path),)) for path in (first, second))
    scored = predicted_pair(Item("", pair), ScoreRequest())
    one, two = map(linked_recording, pair)
    found, as_it_was = with_device_times(one, two), with_device_times(one, two, 1.0)
    span, predicted = (figures["time_s"] * 1e9 for figures in (scored.measured, scored.predicted))
    return {
        "graph of": reading.stem(first),
        "device times of": reading.stem(second),
        "own_ms": recorded_span_ns(one) / 1e6,
        "predicted_ms": predicted / 1e6,
        "recorded_ms": span / 1e6,
        "error": predicted / span - 1,
        "same_host": run(as_it_was.job).makespan_ns / span - 1,
        "host_factor": found.host_factor,
        "shared": found.shared,
        "placed": found.placed,
    }


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'capture':<30} {'nodes':>8} {'recorded ms':>12} {'simulated ms':>13} {'error':>8} {'cut lanes':>10}"
          f" {'kernels':>8} {'start error, us: 5%':>20} {'50%':>9} {'95%':>9} {'50% cut':>9}"
          f" {'late us':>8}")  # fmt: skip
    for r in rows:
        print(f"{r['capture']:<30} {r['nodes']:>8,} {r['recorded_ms']:>12.2f} {r['simulated_ms']:>13.2f}"
              f" {r['error']:>+8.2%} {r['cut']:>+10.1%} {r['kernels']:>8,} {r['p5']:>20.1f} {r['p50']:>9.1f}"
              f" {r['p95']:>9.1f} {r['cut_p50']:>9.0f} {r['late']:>8.2f}")  # fmt: skip
    off = sorted(abs(r["error"]) for r in rows)
    near, late = sum(e <= 0.0015 for e in off), max(r["late"] for r in rows)
    print(f"{len(rows)} captures: {near} within 0.15%, median error {np.median(off):.2%}, largest {off[-1]:.2%}; "
          f"a recorded start is at most {late:.2f} us before the end of what it waits for")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="*", type=Path, help="device traces, a capture each, or folders of runs")
    parser.add_argument("--pair", nargs=2, type=Path, metavar=("HOST_BOUND", "GPU_BOUND"), action="append", default=[])
    parser.add_argument("--quick", action="store_true", help="leave out the largest and the public captures")
    args = parser.parse_args()
    pairs = [tuple(pair) for pair in args.pair]
    found: dict[str, list[RankFiles]] = {}
    for given in args.device:
        if given.is_file():
            found[reading.stem(given)] = [RankFiles(rank=None, device=given)]
        for name, ranks in runs.runs_in(given).items() if not given.is_file() else ():
            add(found, name or given.resolve().name, ranks)
    if not args.device and not args.pair:
        if not shared().is_dir():
            print("no reference data: set ETUDE_SHARED, or name captures", file=sys.stderr)
            return 2
        found = captures(shared(), public=not args.quick)
        if args.quick:
            found.pop("big", None)
        names = ("traces/h200_pairs/gpt8_b1", "traces/h200_pairs/gpt8_b96",
                 "measured/replay/gpt_m_b8", "measured/replay/gpt_m_b4_t2048")  # fmt: skip
        files = [shared() / f"{name}_kineto.json.gz" for name in names]
        pairs = list(zip(files[::2], files[1::2], strict=True))
    if found:
        show([fidelity(name, ranks) for name, ranks in found.items()])
    for first, second in pairs:
        for a, b in ((first, second), (second, first)):
            r = causality(a, b)
            print(f"\ngraph of {r['graph of']} ({r['own_ms']:.2f} ms), device times of {r['device times of']}"
                  f" ({r['placed']:.1%} placed): {r['predicted_ms']:.2f} ms, recorded {r['recorded_ms']:.2f} ms:"
                  f" {r['error']:+.2%} with host times x {r['host_factor']:.3f} (from {r['shared']:.0%} of them),"
                  f" {r['same_host']:+.2%} with the host as it was")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
