"""Fits the ranges of predicted figures to the errors of held-out rows, and writes them for `etude`.

    python benchmarks/fit_bands.py          # prints and writes
    python benchmarks/fit_bands.py --dry    # prints

The errors are those of `held_out_errors.csv`, which `held_out_errors.py` makes. The width of |ln(predicted / measured)|
grows with the distances of a case (`EstimateCase.distances`), by factors that are fitted to the logarithm of the errors
and never make a range narrower. A range is the width times a quantile of the errors over their widths: the geometric
mean of that of the rows of the same kind, which counts as often as the kind has sources, and that of all rows of the
figure, which counts twice: what one or two sources leave of a kind says little of the next. Kinds with fewer than 40
rows, or with rows of fewer than 5 sources, have that of all such kinds of their figure together.
Rows of one source count together as much as the root of their number. A source's errors are divided by widths that were
fitted without it. The range of nine of ten is wider where sources are few: of S sources by the root of Student's t at
S - 1 degrees of freedom over the normal quantile, which is right where half of the spread is between sources (3 sources
1.33, 5 sources 1.14).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from scipy.stats import norm as normal
from scipy.stats import t as student

from etude.base.figures import plain
from etude.cost.estimates.cases import DISTANCES, EstimateCase
from etude.cost.estimates.evidence import NARROW, ErrorQuantiles, Evidence

sys.path.insert(0, str(Path(__file__).parent))

from held_out_errors import HERE, HeldOutRow, read_rows

BANDS = HERE.parent / "src" / "etude" / "cost" / "estimates" / "bands.yaml"
ENOUGH = 40
"""Held-out rows of a kind from which on it has quantiles of its own,"""
SOURCES = 5
"""... and their sources."""
FLOOR = 0.005
"""Added to errors before their logarithm is taken: one row that is right by chance says little of the others."""
RIDGE = 20.0
"""Rows' worth of evidence that a distance changes nothing."""
FIRM = 20.0
"""... that a device's errors are as large as those of others."""
SHARED = 2.0
"""Sources' worth of evidence that a kind's errors are as large as those of all kinds of its figure."""
NINE = 0.95
"""The side of a symmetric range that holds nine of ten."""
ABOUT = {
    "step": "published training steps and steps of one H200",
    "memory": "peaks of steps of one H200",
    "program step": "steps of eager programs of other people on one H200",
    "program memory": "peaks of eager programs of other people on one H200",
    "time of images and videos": "rows of a leaderboard",
    "power of serving": "rows of a leaderboard and published ones",
    "energy of a token": "rows of a leaderboard",
    "time between tokens": "rows of a leaderboard and published ones",
    "power": "runs of one H200",
    "energy of a call": "runs of one H200",
    "time of a call": "runs of one H200",
    "time of an operator": "operators of one H200 and of Vidur",
    "time of a collective": "calls inside a node",
}
SERVED = "published serving"


def distances(rows: Sequence[HeldOutRow], fitted: set[str]) -> np.ndarray:
    found = [row.case.distances(fitted) for row in rows]
    return np.array([[one.get(name, 0.0) for name in DISTANCES] for one in found])


def weights(rows: Sequence[HeldOutRow]) -> np.ndarray:
    count = Counter(row.source for row in rows)
    return np.array([count[row.source] ** -0.5 for row in rows])


def widths(rows: Sequence[HeldOutRow], fitted: set[str]) -> tuple[dict[str, float], dict[str, float]]:
    """Growth of the logarithm of the errors with each distance, none below 0, held near 0; kinds differ by more. And
    factors of devices, held near 1."""
    far = distances(rows, fitted)
    kinds = sorted({row.case.kind for row in rows})
    own = np.array([[float(row.case.kind == kind) for kind in kinds] for row in rows])
    devices = sorted({row.case.device for row in rows})
    on = np.array([[float(row.case.device == device) for device in devices] for row in rows])
    goal, weight = np.log(np.abs([row.error for row in rows]) + FLOOR), weights(rows)
    weight = weight / weight.mean()
    active = [i for i in range(len(DISTANCES)) if far[:, i].any()]
    while True:
        matrix = np.hstack([own, on, far[:, active]])
        hold = np.diag([0.01] * len(kinds) + [FIRM] * len(devices) + [RIDGE] * len(active))
        slope = np.linalg.solve(matrix.T @ (weight[:, None] * matrix) + hold, matrix.T @ (weight * goal))
        distant = slope[len(kinds) + len(devices) :]
        below = [i for i, value in zip(active, distant, strict=True) if value < 0]
        if not below:
            break
        active = [i for i in active if i not in below]
    growth = dict(zip((DISTANCES[i] for i in active), distant, strict=True))
    factors = dict(zip(devices, np.exp(slope[len(kinds) : len(kinds) + len(devices)]), strict=True))
    return (
        {name: round(float(value), 3) for name, value in growth.items() if value > 0.0005},
        {name: round(float(value), 3) for name, value in factors.items()},
    )


def quantile(values: np.ndarray, weight: np.ndarray, level: float) -> float:
    """Weighted; as high as one more row asks for."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(weight[order]) / (weight.sum() + weight.mean())
    return float(values[order][min(int(np.searchsorted(share, level)), len(values) - 1)])


def of_few_sources(sources: float) -> float:
    """Factor on the range of nine of ten."""
    return float((student.ppf(NINE, max(sources - 1, 1)) / normal.ppf(NINE)) ** 0.5)


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """Rows with their errors over their widths."""

    rows: tuple[HeldOutRow, ...]
    scaled: np.ndarray
    weight: np.ndarray

    def of(self, which: Sequence[bool]) -> Scored:
        chosen = np.array(which, bool)
        rows = tuple(row for row, counts in zip(self.rows, which, strict=True) if counts)
        return Scored(rows, self.scaled[chosen], self.weight[chosen])

    @property
    def sources(self) -> int:
        return len({row.source for row in self.rows})

    def quantiles(self, sources: float) -> tuple[float, float]:
        """That of half, and of nine of ten, which is wider where sources are few."""
        half, most = (quantile(self.scaled, self.weight, level) for level in (0.5, 0.9))
        return half, most * of_few_sources(sources)

    def near(self, others: Scored) -> tuple[float, float]:
        """Held near those of all kinds."""
        share = self.sources / (self.sources + SHARED)
        behind = min(self.sources + SHARED, others.sources)
        pairs = zip(self.quantiles(behind), others.quantiles(behind), strict=True)
        half, most = (own**share * all_of ** (1 - share) for own, all_of in pairs)
        return half, most


def own_kinds(rows: Sequence[HeldOutRow]) -> set[str]:
    """Kinds, and wider ones (`dense` of `dense, static batch`), of enough rows and sources."""
    sources: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for kind in kinds_of(row):
            sources[kind].append(row.source)
    return {kind for kind, of in sources.items() if len(of) >= ENOUGH and len(set(of)) >= SOURCES}


def fit_evidence(figure: str, rows: Sequence[HeldOutRow], own: Collection[str] | None = None) -> Evidence:
    """What held-out rows say of a figure. `own`: kinds with quantiles of their own."""
    own = own_kinds(rows) if own is None else own
    fitted = {row.case.device for row in rows if row.fitted}
    seen = {row.case.device for row in rows}
    growth, factors = widths(rows, fitted)
    everything = Scored(tuple(rows), over_widths(rows, fitted), weights(rows))
    pool = everything.of([row.case.kind not in own for row in rows])
    found = {}
    for kind in sorted({kind for row in rows for kind in kinds_of(row)}):
        mine = everything.of([kind in kinds_of(row) for row in rows])
        found[kind] = quantiles_of(mine, mine if kind in own or not pool.rows else pool, everything)
    return Evidence(
        about=ABOUT.get(figure, SERVED),
        kinds=found,
        widths=growth,
        devices=factors,
        fitted=tuple(sorted(fitted)),
        seen=tuple(sorted(seen)),
        precisions=tuple(sorted({f"{c.precision} on {c.device}" for c in cases_in(rows) if c.precision in NARROW})),
    )


def over_widths(rows: Sequence[HeldOutRow], fitted: Collection[str]) -> np.ndarray:
    """Errors over widths to which their source did not contribute."""
    scaled = np.zeros(len(rows))
    for source in {row.source for row in rows}:
        others = [row for row in rows if row.source != source] or list(rows)
        grown, of = widths(others, set(fitted))
        known = Evidence(about="", kinds={}, widths=grown, devices=of, fitted=tuple(fitted))
        for i, row in enumerate(rows):
            if row.source == source:
                scaled[i] = abs(row.error) / known.width(row.case)
    return scaled


def quantiles_of(mine: Scored, behind: Scored, everything: Scored) -> ErrorQuantiles:
    """Of a kind; `behind` are the rows that its quantiles are of."""
    half, most = behind.near(everything)
    pooled, cases = behind is not mine, cases_in(mine.rows)
    elements = [case.elements for case in cases if case.elements]
    return ErrorQuantiles(
        rows=len(mine.rows),
        sources=mine.sources,
        half=round(half, 4),
        most=round(most, 4),
        pooled=pooled,
        pool_rows=len(behind.rows) if pooled else 0,
        pool_sources=behind.sources if pooled else 0,
        devices=tuple(sorted({case.device for case in cases_in(behind.rows)})),
        most_gpus=max(case.gpus for case in cases),
        least_elements=min(elements, default=0.0),
        most_elements=max(elements, default=0.0),
    )


def cases_in(rows: Iterable[HeldOutRow]) -> list[EstimateCase]:
    return [row.case for row in rows]


def kinds_of(row: HeldOutRow) -> tuple[str, ...]:
    """`dense, static batch` is `dense`, too."""
    return tuple(dict.fromkeys((row.case.kind, row.case.kind.partition(", ")[0])))


def by_figure(rows: Iterable[HeldOutRow]) -> dict[str, list[HeldOutRow]]:
    found: dict[str, list[HeldOutRow]] = defaultdict(list)
    for row in rows:
        found[row.case.figure].append(row)
    return dict(found)


def label(row: HeldOutRow, by: str) -> Hashable:
    return {"source": row.source, "model": row.model, "device": row.case.device}[by]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    options = parser.parse_args()
    rows = [row for part in read_rows().values() for row in part]
    found = {figure: fit_evidence(figure, of) for figure, of in by_figure(rows).items()}
    for figure, known in found.items():
        print(f"{figure}: widths grow with {known.widths}")
        for kind, its in known.kinds.items():
            pool = f"   (pooled: {its.pool_rows} rows of {its.pool_sources} sources)" if its.pooled else ""
            within = f"half within {np.expm1(its.half):6.1%}   nine of ten {np.expm1(its.most):6.1%}"
            print(f"  {kind:20s} {its.rows:4d} rows of {its.sources:2d} sources   {within}{pool}")
    if not options.dry:
        before = yaml.safe_load(BANDS.read_text("utf-8"))["figures"]
        figures = before | {name: plain(one) for name, one in found.items()}
        text = {"made by": "benchmarks/fit_bands.py", "figures": figures}
        BANDS.write_text(yaml.safe_dump(text, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))
        print(f"wrote {BANDS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
