"""Fits the ranges of predicted figures to the errors of held-out rows, and writes them for `etude`.

    python benchmarks/fit_bands.py --scored /tmp/scored --outcomes /tmp/outcomes.json          # prints and writes
    python benchmarks/fit_bands.py --scored /tmp/scored --outcomes /tmp/outcomes.json --dry    # prints

Each row of the files of measurements is predicted as `etude score` does; what was predicted is kept in the folder
`--scored`, and what is there is not predicted again: take another folder after a change of a prediction. The stacks of
the catalogue were fitted to `published_train.csv`: its rows are predicted by factors to which no row of their source
contributed (`fit_stacks.py`, whose file of outcomes `--outcomes` is), with the stack that they name and with none.
Eager steps of one H200 are held out one by one.

An error is |ln(predicted / measured)|. Its width grows with the distances of a case (`EstimateCase.distances`), by
factors that are fitted to the logarithm of the errors and never make a range narrower. A range is the width times a
quantile of the errors over their widths: the geometric mean of that of the rows of the same kind, which counts as often
as the kind has sources, and that of all rows of the figure, which counts twice: what one or two sources leave of a kind
says little of the next. Kinds with fewer than 40 rows have that of all such kinds.
Rows of one source count together as much as the root of their number. A source's errors are divided by widths that were
fitted without it. The range of nine of ten is wider where sources are few: of S sources by the root of Student's t at
S - 1 degrees of freedom over the normal quantile, which is right where half of the spread is between sources (3 sources
1.33, 5 sources 1.14).
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.stats import norm as normal
from scipy.stats import t as student

from etude.cost.estimates.cases import DISTANCES, EstimateCase
from etude.cost.estimates.evidence import ErrorQuantiles, Evidence
from etude.decide.score import score

sys.path.insert(0, str(Path(__file__).parent))

HERE = Path(__file__).parent
BANDS = HERE.parent / "src" / "etude" / "cost" / "estimates" / "bands.yaml"
ENOUGH = 40
"""Held-out rows of a kind from which on it has quantiles of its own."""
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
    "time of images and videos": "rows of a leaderboard",
    "power of serving": "rows of a leaderboard and published ones",
    "energy of a token": "rows of a leaderboard",
    "time between tokens": "rows of a leaderboard and published ones",
    "power": "runs of one H200",
    "energy of a call": "runs of one H200",
    "time of a call": "runs of one H200",
}
SERVED = "published serving"
ENERGY = "h200_extra/energy/energy.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRow:
    """The error of a row, what it is like, and by what it may be held out."""

    case: EstimateCase
    error: float
    """ln(predicted / measured)."""
    source: str
    model: str
    fitted: bool
    """The predictor was fitted to other rows of its device."""


# -- held-out rows -----------------------------------------------------------------------------------------------------


def scored_rows(path: Path, kept: Path, **options: Any) -> list[dict[str, Any]]:
    """The records of a file's rows; taken from the folder where they are there."""
    name = "-".join([path.stem, *(f"{key}={value}" for key, value in options.items())])
    place = kept / f"{name}.json"
    if not place.exists():
        print(f"scoring {path.name} {options or ''}", file=sys.stderr, flush=True)
        place.write_text(json.dumps(score(path, **options).rows), "utf-8")
    return list(json.loads(place.read_text("utf-8")))


def held_rows(records: Iterable[dict[str, Any]], rows: Sequence[dict[str, str]], source: str = "") -> list[HeldOutRow]:
    """Of every figure that has a case."""
    found = []
    for record in records:
        for figure, basis in (record.get("basis") or {}).items():
            measured, predicted = record["measured"].get(figure, 0.0), record["predicted"].get(figure, 0.0)
            if "case" not in basis or measured <= 0 or predicted <= 0:
                continue
            row = rows[record["row"] - 1]
            found.append(
                HeldOutRow(
                    case=EstimateCase(**basis["case"]), error=float(np.log(predicted / measured)), fitted=False,
                    source=(row.get("source") or source).split(" :: ")[0], model=row.get("model") or source,
                )
            )  # fmt: skip
    return found


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        return [{k: (v or "").strip() for k, v in row.items() if isinstance(k, str)} for row in csv.DictReader(file)]


def fitted_steps(path: Path, outcomes: Path | None, *, named: bool) -> list[HeldOutRow]:
    """Rows that stacks were fitted to, by factors without their source."""
    from fit_stacks import fitted

    from etude.steps.estimates import open_settings, step_case
    from etude.steps.measured.outcomes import OutcomeFile

    folds = {r["source"]: r["fold"] for r in table(HERE / "published_split.csv")}
    rows = table(path)
    fit = fitted(rows, folds, OutcomeFile(outcomes), 1, default=not named)
    found = []
    for sample, error in zip(fit.samples, fit.errors, strict=True):
        case, row = sample.case, rows[sample.case.row - 1]
        about = step_case(case.model, case.plan, case.system, case.stack, unstated=open_settings(row))
        found.append(
            HeldOutRow(case=replace(about, named=named), error=float(np.log1p(error)), source=row["source"],
                       model=row["model"], fitted=True)
        )  # fmt: skip
    return found


def eager_steps(path: Path, outcomes: Path | None) -> list[HeldOutRow]:
    """Steps of one H200, each by factors without it."""
    from fit_stacks import eager

    from etude.steps.estimates import step_case
    from etude.steps.measured.outcomes import OutcomeFile

    fit = eager(OutcomeFile(outcomes), 1, path)
    return [
        HeldOutRow(case=step_case(s.case.model, s.case.plan, s.case.system, s.case.stack), error=float(np.log1p(error)),
                   source=path.stem, model=s.case.model.name, fitted=True)
        for s, error in zip(fit.samples, fit.errors, strict=True)
    ]  # fmt: skip


def training(shared: Path, kept: Path, outcomes: Path | None) -> list[HeldOutRow]:
    old, more = shared / "published_train.csv", shared / "published_train_more.csv"
    grid, steps = HERE / "h200_steps_grid.csv", shared / "h200_steps.csv"
    found = [row for named in (True, False) for row in fitted_steps(old, outcomes, named=named)]
    found += eager_steps(grid, outcomes)
    found += held_rows(scored_rows(more, kept), table(more))
    for path in (grid, steps):
        seen = held_rows(scored_rows(path, kept), table(path), path.stem)
        found += [row for row in seen if row.case.figure == "memory" or path == steps]
    return found


def served(shared: Path, kept: Path) -> list[HeldOutRow]:
    """Serving, images and energy. What the stacks of engines and the powers were fitted to is left out: the models of
    `serving_split.csv` and `diffusion_split.csv`, the rows `fit` of `h200_energy_split.csv`. Of a leaderboard each
    model counts as a source."""
    found = []
    for name, split in (("ml_energy_llm.csv", "serving_split.csv"), ("ml_energy_diffusion.csv", "diffusion_split.csv")):
        rows, fit = table(shared / name), {one["model"] for one in table(HERE / split)}
        records = [one for one in scored_rows(shared / name, kept) if rows[one["row"] - 1]["model"] not in fit]
        found += [replace(row, source=f"leaderboard: {row.model}", fitted=True) for row in held_rows(records, rows)]
    rows, fit = table(shared / ENERGY), {r["name"] for r in table(HERE / "h200_energy_split.csv") if r["use"] == "fit"}
    records = [one for one in scored_rows(shared / ENERGY, kept) if rows[one["row"] - 1]["name"] not in fit]
    found += [replace(row, source=f"one H200: {row.case.kind}", fitted=True) for row in held_rows(records, rows)]
    published = shared / "serving_published.csv"
    return found + held_rows(scored_rows(published, kept), table(published))


# -- the fit -----------------------------------------------------------------------------------------------------------


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
    """Errors over their widths."""

    scaled: np.ndarray
    weight: np.ndarray
    source: tuple[str, ...]

    def of(self, which: np.ndarray) -> Scored:
        source = tuple(name for name, counts in zip(self.source, which.tolist(), strict=True) if counts)
        return Scored(self.scaled[which], self.weight[which], source)

    @property
    def sources(self) -> int:
        return len(set(self.source))

    def quantiles(self, sources: float = 0.0) -> tuple[float, float]:
        """That of half, and of nine of ten, which is wider where sources are few."""
        half, most = (quantile(self.scaled, self.weight, level) for level in (0.5, 0.9))
        return half, most * of_few_sources(sources or self.sources)

    def near(self, others: Scored) -> tuple[float, float]:
        """Held near those of all kinds."""
        share = self.sources / (self.sources + SHARED)
        behind = min(self.sources + SHARED, others.sources)
        pairs = zip(self.quantiles(behind), others.quantiles(behind), strict=True)
        half, most = (own**share * all_of ** (1 - share) for own, all_of in pairs)
        return half, most


def fit_evidence(figure: str, rows: Sequence[HeldOutRow]) -> Evidence:
    """What held-out rows say of a figure."""
    fitted = {row.case.device for row in rows if row.fitted}
    seen = {row.case.device for row in rows}
    growth, factors = widths(rows, fitted)
    scaled = np.zeros(len(rows))
    for source in {row.source for row in rows}:
        others = [row for row in rows if row.source != source] or list(rows)
        grown, of = widths(others, fitted)
        blank = Evidence(about="", kinds={}, widths=grown, devices=of, fitted=tuple(fitted), seen=tuple(seen))
        for i, row in enumerate(rows):
            if row.source == source:
                scaled[i] = abs(row.error) / blank.width(row.case)
    weight, kinds = weights(rows), [kinds_of(row) for row in rows]
    count = Counter(kind for of in kinds for kind in of)
    few = np.array([count[row.case.kind] < ENOUGH for row in rows])
    everything = Scored(scaled, weight, tuple(row.source for row in rows))
    small = everything.of(few) if few.sum() >= ENOUGH else everything
    found = {}
    for kind in sorted(count):
        pooled = count[kind] < ENOUGH < len(rows)
        mine = everything.of(np.array([kind in of for of in kinds]))
        half, most = small.quantiles() if pooled else mine.near(everything)
        found[kind] = ErrorQuantiles(
            rows=len(mine.scaled), sources=mine.sources, pooled=pooled, half=round(half, 4), most=round(most, 4)
        )
    return Evidence(
        about=ABOUT.get(figure, SERVED),
        kinds=found,
        widths=growth,
        devices=factors,
        fitted=tuple(sorted(fitted)),
        seen=tuple(sorted(seen)),
    )


def kinds_of(row: HeldOutRow) -> tuple[str, ...]:
    """`dense, static batch` is `dense`, too."""
    return tuple(dict.fromkeys((row.case.kind, row.case.kind.partition(", ")[0])))


def by_figure(rows: Iterable[HeldOutRow]) -> dict[str, list[HeldOutRow]]:
    found: dict[str, list[HeldOutRow]] = defaultdict(list)
    for row in rows:
        found[row.case.figure].append(row)
    return dict(found)


def all_rows(options: argparse.Namespace) -> list[HeldOutRow]:
    measured = options.shared / "measured"
    with tempfile.TemporaryDirectory() as temporary:
        kept = options.scored or Path(temporary)
        kept.mkdir(parents=True, exist_ok=True)
        found = training(measured, kept, options.outcomes) if options.only != "serving" else []
        return found + (served(measured, kept) if options.only != "training" else [])


def arguments(parser: argparse.ArgumentParser) -> None:
    shared = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared"))
    parser.add_argument("--shared", type=Path, default=shared)
    parser.add_argument("--scored", type=Path, help="keep predicted rows here, and take those that are there")
    parser.add_argument("--outcomes", type=Path, help="the file of outcomes of fit_stacks.py")
    parser.add_argument("--only", choices=("training", "serving"), default="", help="the figures of this alone")


def groups(rows: Sequence[HeldOutRow]) -> dict[str, list[HeldOutRow]]:
    found: dict[str, list[HeldOutRow]] = defaultdict(list)
    for row in rows:
        found[row.case.kind].append(row)
    return dict(sorted(found.items()))


def label(row: HeldOutRow, by: str) -> Hashable:
    return {"source": row.source, "model": row.model, "device": row.case.device}[by]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--dry", action="store_true", help="print, write nothing")
    options = parser.parse_args()
    from etude.base.figures import plain

    found = {figure: fit_evidence(figure, rows) for figure, rows in by_figure(all_rows(options)).items()}
    for figure, known in found.items():
        print(f"{figure}: widths grow with {known.widths}")
        for kind, its in known.kinds.items():
            print(f"  {kind:20s} {its.rows:4d} rows of {its.sources:2d} sources   half within {np.expm1(its.half):6.1%}"
                  f"   nine of ten {np.expm1(its.most):6.1%}{'   (pooled)' if its.pooled else ''}")  # fmt: skip
    if not options.dry:
        before = yaml.safe_load(BANDS.read_text("utf-8"))["figures"] if options.only else {}
        figures = before | {name: plain(one) for name, one in found.items()}
        text = {"made by": "benchmarks/fit_bands.py", "figures": figures}
        BANDS.write_text(yaml.safe_dump(text, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120))
        print(f"wrote {BANDS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
