"""Published figures of the gallery and ours, and checks that do not depend on what was simulated.

    python benchmarks/study_claims.py [--full] [--doubts] [--out FOLDER] [--json FILE] [NAME ...]

Every entry runs (with its smaller settings, or `--full`), and every claim is printed with ours, its interval and the
verdict. `--doubts` runs each with its mechanism off as well, and lists shape checks that hold all the same with those
results in the place of its own, or with more than half of 41 exchanges of results between points. `--json` puts the
claims of these entries into a file and leaves others there as they are: benchmarks/claims.json is what docs/gallery.md
shows.
"""

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from etude.base.figures import read_mapping
from etude.decide.study import entries, study
from etude.decide.study.library import find
from etude.decide.study.page import published_text
from etude.decide.study.run import Outcome
from etude.decide.study.tasks import TaskAnswers
from etude.surface.cli.executing import executed
from study_doubts import held_when_exchanged, held_with_neutral


def ran(name: str, out: Path | None, said: TaskAnswers, **how: Any) -> Outcome:
    part = ".".join([name, *(k for k, v in how.items() if v)])
    return study(name, **how).outcome(out=out / part if out else None, execute=executed, said=said)


KEPT = ("figure", "published", "ours", "low", "high", "unit", "verdict")


def keep(file: Path, found: Outcome, quick: bool) -> None:
    """Four digits, so that the file changes where a result does."""
    known: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.exists() else {}
    rows = [
        {k: float(f"{v:.4g}") if isinstance(v := claim[k], float) else v for k in KEPT if claim[k] not in (None, "")}
        for claim in found.claims
    ]
    known[found.spec.name] = {"settings": "quick" if quick else "full", "claims": rows}
    file.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--doubts", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = given.names or [entry["name"] for entry in entries()]
    verdicts: Counter[str] = Counter()
    checks = held = doubts = 0
    silent = []
    for name in names:
        said, quick, before = TaskAnswers(), not given.full, sum(os.times()[:2])
        found = ran(name, given.out, said, quick=quick)
        failed = [check["name"] for check in found.checks if check["ok"] is not True]
        checks += len(found.checks)
        held += len(found.checks) - len(failed)
        for claim in found.claims:
            verdicts[claim["verdict"]] += 1
            ours = claim["ours"]
            shown = str(ours) if not isinstance(ours, float | int) or isinstance(ours, bool) else f"{ours:.4g}"
            band = f" ({claim['low']:.4g} to {claim['high']:.4g})" if claim["low"] is not None else ""
            said_of = "a statement" if claim["published"] is None else published_text(claim)
            print(f"{name:24} {claim['figure'][:60]:60} {said_of:>16} {shown:>10}{band}  {claim['verdict']}")
            if claim["detail"]:
                print(f"{'':24} {claim['detail']}")
        if not found.claims:
            silent.append(name)
        elif given.json:
            keep(given.json, found, quick and "quick" in read_mapping(find(name)))
        for check in failed:
            print(f"{name:24} FAILS: {check}")
        if given.doubts:
            off = ran(name, given.out, said, quick=quick, neutral=True)
            without = held_with_neutral(found.spec, found.points, off.points)
            exchanged = held_when_exchanged(found.spec, found.points)
            for check in [c["name"] for c in found.checks if c["name"] in without or exchanged.get(c["name"], 0) > 0.5]:
                doubts += 1
                neutral = "with the mechanism off, " if check in without else ""
                print(f"{name:24} holds {neutral}with {exchanged.get(check, 0):.0%} of exchanges: {check}")
        print(f"{name:24} {sum(os.times()[:2]) - before:.1f} CPU s", file=sys.stderr, flush=True)
    print(f"{len(names)} entries, {held} of {checks} checks hold; claims: {sum(verdicts.values())}, {dict(verdicts)}")
    if silent:
        print(f"without claims: {', '.join(silent)}")
    if given.doubts:
        print(f"{doubts} shape checks hold with the mechanism off or with most exchanges")


if __name__ == "__main__":
    main()
