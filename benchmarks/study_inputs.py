"""Entries of the gallery with other inputs: do their checks hold, and if not, do they say why.

    python benchmarks/study_inputs.py [--by 0.5] [--json FILE] [NAME ...]

Every number that `--set` takes (axes of the sweep, parameters of all points and of the baseline) is put at half and at
one and a half times its value, one after the other, with the smaller settings. Checks hold, fail, or are not asked; a
point that its command refuses says why. What fails is printed with its numbers: a shape that fails is an answer, an
exact check that fails is a fault of the entry.
"""

import argparse
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etude.base.errors import EtudeError
from etude.base.figures import read_mapping
from etude.decide.study import entries, study
from etude.decide.study.library import find
from etude.decide.study.tasks import TaskAnswers
from etude.surface.cli.executing import executed

AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z%/]*)")


def scaled(value: Any, by: float) -> Any:
    """The same with its number changed; None where it has none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, list):
        found = [scaled(one, by) for one in value]
        kept = [one for one in found if one is not None]
        return list(dict.fromkeys(kept)) if found and len(kept) == len(found) else None
    if isinstance(value, int):
        return max(1, round(value * by)) if value > 0 else None
    if isinstance(value, float):
        return float(f"{value * by:.4g}") if value > 0 else None
    amount = AMOUNT.fullmatch(value) if isinstance(value, str) else None
    if amount is None or float(amount[1]) == 0:
        return None
    number = float(amount[1]) * by
    return f"{max(1, round(number)) if '.' not in amount[1] and number >= 4 else f'{number:.4g}'}{amount[2]}"


def inputs(name: str) -> dict[str, Any]:
    """Everything that --set takes and that is a number, as the smaller settings have it."""
    given = read_mapping(find(name))
    used = {**given, **(given.get("quick") or {})}
    sweep = used.get("sweep") or {}
    found: dict[str, Any] = dict(sweep) if isinstance(sweep, dict) else {}
    if isinstance(sweep, list):
        found = {axis: list(dict.fromkeys(row[axis] for row in sweep)) for axis in sweep[0]}
    for key in ("set", "perturb", "baseline"):
        found |= {k: v for k, v in (used.get(key) or {}).items() if k != "name"}
    return {k: v for k, v in found.items() if not isinstance(v, dict)}


def changes(name: str, by: float) -> Iterator[tuple[str, Any]]:
    for key, value in inputs(name).items():
        for factor in (1 - by, 1 + by):
            other = scaled(value, factor)
            if other is not None and other != value:
                yield key, other


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--by", type=float, default=0.5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    counts: Counter[str] = Counter()
    kept: list[dict[str, Any]] = []
    for name in given.names or [entry["name"] for entry in entries()]:
        before = sum(os.times()[:2])
        for key, value in changes(name, given.by):
            at = f"{name} --set {key}={','.join(map(str, value)) if isinstance(value, list) else value}"
            try:
                found = study(name, quick=True, values={key: value}).outcome(execute=executed, said=TaskAnswers())
            except EtudeError as problem:
                counts["refused"] += 1
                print(f"{at}: refused: {problem.problem}")
                continue
            failed = sorted({row["error"] for row in found.points if row["error"]})
            counts["runs"] += 1
            counts["runs with a point that its command refuses"] += bool(failed)
            if failed:
                print(f"{at}: {failed[0][:200]}")
            for check in found.checks:
                answer = {True: "holds", False: "fails", None: "not asked"}[check["ok"]]
                said = answer == "fails" and check["detail"].startswith("a point failed")
                counts[f"{check['kind']} {'a point is refused' if said else answer}"] += 1
                if answer == "fails" and not said:
                    print(f"{at}: {check['kind']} FAILS: {check['name']}\n    {check['detail'][:300]}")
            kept.append({"name": name, "set": {key: value}, "checks": found.checks})
        print(f"{name}: {sum(os.times()[:2]) - before:.1f} CPU s", file=sys.stderr, flush=True)
    print(", ".join(f"{what}: {n:,}" for what, n in sorted(counts.items())))
    if given.json:
        given.json.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
