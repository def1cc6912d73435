"""Errors of published training steps by source and by kind of row, of sources that no factor was fitted to.

    python benchmarks/validate_sources.py                          # published_train_more.csv of the reference data
    python benchmarks/validate_sources.py --rows my.csv other.csv  # other files of the same columns
    python benchmarks/validate_sources.py --source Neuron --detail # sources with this word, row by row

A source is the text of `source` before ` :: `. Sources are split whole, by a hash of their name alone: the `open` ones
may be looked at row by row when a mechanism is mended, the `held` ones only as the figures that this prints. Rows whose
`confidence` begins with INCOMPLETE count in a table of their own: they lack what decides the time of a step.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from etude.base.errors import EtudeError
from etude.steps.measured import read_rows
from etude.steps.measured.row_models import row_model
from etude.steps.measured.row_training import trained_fields
from etude.steps.measured.rows import case_or_refused, predicted_case

HERE = Path(__file__).parent
MANY = 10
"""Rows from which on the bias of a source is a line of its own under the bars."""


@dataclass
class Group:
    """Errors (predicted over measured, minus 1) of some rows, and the reasons of those without one."""

    errors: list[float] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)

    def line(self, name: str) -> str:
        refused = sum(self.reasons.values())
        text = f"{name[:58]:58s} {len(self.errors):4d} {refused:4d}"
        if not self.errors:
            return text
        errors = np.array(self.errors)
        size = np.abs(errors)
        return (f"{text}  {np.median(size):6.1%} {size.mean():6.1%} {np.percentile(size, 90):6.1%}"
                f" {np.median(errors):+7.1%}")  # fmt: skip


def source_of(row: dict[str, str]) -> str:
    return row.get("source", "").split(" :: ")[0] or "no source"


def part_of(source: str) -> str:
    """Half of the split that a source is in, by its name alone."""
    return "held" if hashlib.sha256(source.encode()).digest()[0] % 2 else "open"


def kind_of(row: dict[str, str]) -> str:
    try:
        tuned = "train" in trained_fields(row, "", []) or "SFT" in row.get("model", "")
        experts = row_model(row, []).experts
    except EtudeError:
        return "not known"
    return "fine-tuning" if tuned else "experts" if experts else "dense"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared")) / "measured"
    parser.add_argument("--rows", type=Path, nargs="+", default=[shared / "published_train_more.csv"])
    parser.add_argument("--source", default="", help="only sources that have this in their name")
    parser.add_argument("--kind", default="", help="only rows of this kind: dense, experts, fine-tuning")
    parser.add_argument("--detail", action="store_true", help="print each row of the open sources")
    options = parser.parse_args()
    groups: dict[tuple[str, str], Group] = defaultdict(Group)
    reasons: Counter[str] = Counter()
    for path in options.rows:
        for number, row in enumerate(read_rows(path), 1):
            source = source_of(row)
            if options.source not in source or (options.kind and kind_of(row) != options.kind):
                continue
            complete = "incomplete" if row.get("confidence", "").startswith("INCOMPLETE") else "complete"
            found = predicted_case(case_or_refused(row, number))
            names = [f"{part_of(source)}: {source}", "all", f"all {part_of(source)}", f"all {kind_of(row)}"]
            for name in names:
                if "refused" in found:
                    groups[complete, name].reasons[found["refused"]] += 1
                else:
                    groups[complete, name].errors.append(found["predicted"]["step"] / found["measured"]["step"] - 1)
            if "refused" in found:
                reasons[found["refused"]] += 1
            if options.detail and part_of(source) == "open":
                detail(number, row, found)
    for complete in ("incomplete", "complete"):
        print(f"\n{complete + ' rows':58s} rows  ref  median   mean    p90    bias")
        for name in sorted(n for c, n in groups if c == complete):
            print(groups[complete, name].line(name))
    known, refused = sum(len(groups[c, "all"].errors) for c in ("complete", "incomplete")), sum(reasons.values())
    print(f"\nrefused {refused} of {known + refused} rows")
    for why, count in reasons.most_common():
        print(f"{count:5d}  {why}")
    far = [n for (c, n), g in groups.items() if c == "complete" and not n.startswith("all") and
           len(g.errors) >= MANY and abs(np.median(g.errors)) > 0.12]  # fmt: skip
    print(f"\nsources of {MANY} complete rows and more with a bias above 12%: {'; '.join(far) or 'none'}")
    return 0


def detail(number: int, row: dict[str, str], found: dict) -> None:
    axes = " ".join(f"{k}{row.get(k) or '?'}" for k in ("tp", "pp", "cp", "ep", "micro_batch", "global_batch"))
    about = f"{number:4d} {row['model'][:20]:20s} {row['gpu_type'][:12]:12s} {row.get('precision', '')[:8]:8s} " + axes
    if "refused" in found:
        print(f"{about} refused: {found['refused']}")
        return
    measured, time = found["measured"]["step"], found["predicted"]["step"]
    print(f"{about} {time:.3f} s, published {measured:.3f} ({time / measured - 1:+.1%})", flush=True)


if __name__ == "__main__":
    sys.exit(main())
