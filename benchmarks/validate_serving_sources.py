"""Published serving rows, by source, engine and figure.

    python benchmarks/validate_serving_sources.py                        # ../shared/measured/serving_published.csv
    python benchmarks/validate_serving_sources.py --table FILE.csv       # other rows of the same columns
    python benchmarks/validate_serving_sources.py --scored rows.csv      # what `etude score FILE -o rows.csv` wrote
    python benchmarks/validate_serving_sources.py --scored /tmp/scored/serving_published.json  # kept
    python benchmarks/validate_serving_sources.py --by model,gpu_type    # other groups
    python benchmarks/validate_serving_sources.py --fit --scored rows.csv    # of `etude score FILE --stack vllm`

For each figure: rows, median and 90th percentile of |predicted / measured - 1|, median of the signed error. Rows that
are refused are counted with their reasons. Whole sources are held out: every second name in order of the SHA-256 of
the names, by `held_out`, chosen before any error was seen. Rows of the other sources are fitted to: `--fit` prints the
constants of the stacks eager-2023 and vllm-2024.

Rows whose source is said to give an order alone (README of the rows: devices of argonne_llm_inference_bench that are
not NVIDIA's) are in all lines but those of `for accuracy`.

Order: pairs of rows of one source that differ only in the GPU, or only in the precision of the weights, and whose
measured figures differ by more than 15%: how many of them the predictions put in the same order.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

FIGURES = ("tpot_s", "tokens_per_s", "ttft_s", "latency_s", "itl_s", "power_w")
LATE = ("tpot_s", "tokens_per_s", "latency_s")
"""Figures whose order is counted."""
APART = 0.15
CASE = (
    "source", "engine", "gpus", "tp", "pp", "ep", "dp", "disaggregated", "input_tokens", "output_tokens", "load",
    "concurrency", "request_rate", "max_batch",
)  # fmt: skip
"""Columns that a pair has in common."""
NVIDIA = ("A100", "H100", "GH200")
FEWER = re.compile(r"(?i)[-_ ](instruct|fp8|fp4|nvfp4|int4|hf|sft|awq|gptq)\b")
"""Words of a model's name that say how its weights are stored or tuned, and not its shape."""
Pair = tuple[dict[str, str], dict[str, Any]]


def table() -> Path:
    shared = os.environ.get("ETUDE_SHARED") or Path(__file__).resolve().parents[2] / "shared"
    return Path(shared) / "measured" / "serving_published.csv"


def held_out(sources: Iterable[str]) -> set[str]:
    """Every second name in order of the SHA-256 of the names, from the second."""
    order = sorted(set(sources), key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return set(order[1::2])


def scored(path: Path, written: Path | None) -> list[dict[str, Any]]:
    """The record of each row: what was predicted now, or what a file has."""
    if written is None:
        from etude.decide.score import score

        return score(path, kind="serving").rows
    if written.suffix == ".json":
        return list(json.loads(written.read_text("utf-8")))
    with written.open(newline="") as file:
        return [
            {"refused": line["refused"]} if line["refused"]
            else {part: {name.removeprefix(f"{part}_"): float(value) for name, value in line.items()
                         if value and name.startswith(f"{part}_")} for part in ("measured", "predicted")}
            for line in csv.DictReader(file)
        ]  # fmt: skip


def for_accuracy(row: dict[str, str]) -> bool:
    return row["source"] != "argonne_llm_inference_bench" or row["gpu_type"] in NVIDIA


def error(record: dict[str, Any], figure: str) -> float | None:
    measured, predicted = (record.get(part, {}).get(figure) for part in ("measured", "predicted"))
    return predicted / measured - 1.0 if measured and predicted is not None else None


def shown(what: str, errors: list[float]) -> str:
    half, most = np.quantile(np.abs(errors), [0.5, 0.9])
    return f"{what:66s} {len(errors):4d} rows  median {half:6.1%}  p90 {most:7.1%}  bias {np.median(errors):+7.1%}"


def groups(pairs: list[Pair], keys: tuple[str, ...]) -> None:
    for figure in FIGURES:
        found: dict[str, list[float]] = defaultdict(list)
        for row, record in pairs:
            off = error(record, figure)
            if off is not None:
                found[", ".join(row[key] for key in keys)].append(off)
        for name in sorted(found):
            print(shown(f"{figure:13s} {name}", found[name]))


def shape_of(model: str) -> str:
    """The model without its owner and without what its weights are stored in."""
    return FEWER.sub("", model.rpartition("/")[2]).lower()


def beside(pairs: list[Pair], differs: str) -> Iterator[tuple[Pair, Pair]]:
    """Pairs of rows that differ in this column and in nothing else that a row says."""
    same = next(name for name in ("gpu", "weight_precision") if name != differs)
    cases: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for row, record in pairs:
        if "refused" not in record:
            cases[(shape_of(row["model"]), row[same], *(row[name] for name in CASE))].append((row, record))
    for case in cases.values():
        yield from ((a, b) for a, b in combinations(case, 2) if a[0][differs] != b[0][differs])


def order(pairs: list[Pair], what: str) -> None:
    for differs in ("gpu", "weight_precision"):
        for figure in LATE:
            right = apart = 0
            for (_, a), (_, b) in beside(pairs, differs):
                first, second = (one["measured"].get(figure) for one in (a, b))
                if first and second and abs(np.log(first / second)) > np.log1p(APART):
                    apart += 1
                    right += (a["predicted"][figure] > b["predicted"][figure]) == (first > second)
            if apart:
                name = {"gpu": "GPUs", "weight_precision": "precisions"}[differs]
                print(f"order of {name}, {figure}, {what}: {right} of {apart} pairs right, {right / apart:.0%}")


def fit_eager(pairs: list[Pair]) -> None:
    """Constants of the stack eager-2023 on a kind of GPU, from all rows of static batches whose engine is not stated:
    the host launches each kernel of a pass, and then has work of its own."""
    from etude.make.generate.model import open_model
    from etude.steps.measured import gpu_system
    from etude.world.serve.catalogue import pass_tables
    from etude.world.serve.deployment import replica_plan

    for gpu in ("A100", "H100"):
        device, kernels, measured = [], [], []
        for row, record in pairs:
            if row["engine"].startswith("not stated") and row["gpu_type"] == gpu and "predicted" in record:
                model = open_model(row["model"])
                plan = replica_plan(model, int(row["tp"]))
                kernels.append(float(pass_tables(model, plan, gpu_system(gpu)).kernels[0]))
                device.append(record["predicted"]["tpot_s"])
                measured.append(record["measured"]["tpot_s"])
        best = (np.inf, 0.0, 0.0)
        for launch_ns in np.arange(0.0, 60e3, 500.0):
            for pass_ns in np.arange(0.0, 20e6, 250e3):
                time_s = np.maximum(device, launch_ns / 1e9 * np.array(kernels)) + pass_ns / 1e9
                best = min(best, (float(np.abs(np.log(time_s / np.array(measured))).mean()), launch_ns, pass_ns))
        print(f"{gpu}: launch_ns {best[1]:.0f}, pass_ns {best[2]:.0f}; mean error {best[0]:.1%} of {len(device)} rows")


def fit_before_v1(pairs: list[Pair]) -> None:
    """Constants of the stack vllm-2024, from static batches of vLLM on H100 and GH200, whose memory is stated: what a
    pass takes beyond the prediction, as a part for the pass and one for each sequence that it reads and answers."""
    beyond, parts, measured = [], [], []
    for row, record in pairs:
        known = row["engine"] == "vLLM" and "2024" in row["engine_version"] and row["gpu_type"] in ("H100", "GH200")
        if known and "predicted" in record:
            passes = int(row["output_tokens"])
            whole, device = (record[part]["latency_s"] / passes for part in ("measured", "predicted"))
            beyond.append(whole - device)
            parts.append([1.0, 2.0 * int(row["max_batch"])])
            measured.append(whole)
    weight = 1.0 / np.array(measured)
    found = np.linalg.lstsq(np.array(parts) * weight[:, None], np.array(beyond) * weight, rcond=None)[0]
    left = np.abs(np.array(beyond) - np.array(parts) @ found) * weight
    print(f"pass_ns {found[0] * 1e9:.0f}, sequence_ns {found[1] * 1e9:.0f}; median error {np.median(left):.1%} of "
          f"{len(left)} rows")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, default=table())
    parser.add_argument("--scored", type=Path)
    parser.add_argument("--by", default="source,engine")
    parser.add_argument("--fit", action="store_true")
    given = parser.parse_args()
    with given.table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    pairs = list(zip(rows, scored(given.table, given.scored), strict=True))
    if given.fit:
        fit_eager(pairs)
        fit_before_v1(pairs)
        return 0
    refused = Counter(record["refused"] for _, record in pairs if "refused" in record)
    print(f"{len(pairs)} rows, {refused.total()} refused, {refused.total() / len(pairs):.0%}")
    for reason, count in refused.most_common():
        print(f"  refused, {count} rows: {reason}")
    groups(pairs, tuple(given.by.split(",")))
    apart = held_out(row["source"] for row in rows)
    print(f"held out: {', '.join(sorted(apart))}")
    parts = {
        "held out": [pair for pair in pairs if pair[0]["source"] in apart],
        "others": [pair for pair in pairs if pair[0]["source"] not in apart],
        "for accuracy": [pair for pair in pairs if for_accuracy(pair[0])],
        "all": pairs,
    }
    for what, chosen in parts.items():
        for figure in FIGURES:
            errors = [off for _, record in chosen if (off := error(record, figure)) is not None]
            if errors:
                print(shown(f"{what}, {figure}", errors))
        order(chosen, what)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
