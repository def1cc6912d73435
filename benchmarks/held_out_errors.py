"""Errors of predictions of rows that had no part in a fit, to which `fit_bands.py` fits the ranges.

    python benchmarks/held_out_errors.py --scored /tmp/scored --outcomes /tmp/outcomes.json   # writes the file
    python benchmarks/held_out_errors.py --scored /tmp/scored --only calls                    # renews a part of it
    python benchmarks/held_out_errors.py --only programs --programs FOLDER     # what `time_foreign.py` wrote

Each row of the files of measurements is predicted as `etude score` does; what was predicted is kept in the folder
`--scored`, and what is there is not predicted again: take another folder after a change of a prediction. The stacks of
the catalogue were fitted to `published_train.csv`: its rows are predicted by factors to which no row of their source
contributed (`fit_stacks.py`, whose file of outcomes `--outcomes` is), with the stack that they name and with none.
Eager steps of one H200 are held out one by one. Programs that never ran are those that the table of operators was not
fitted to, each a source of its own (those of recurrent networks that `fit_recurrent.py` held out): their steps, of two
measurements the shorter, and the most memory that was given out. Without `--programs` their rows stay.

An error is ln(predicted / measured). The file is `benchmarks/held_out_errors.csv`: a row for each predicted figure,
with its case (`EstimateCase`), its source, its model, and whether the predictor was fitted to other rows of its device.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from etude.cost.estimates import EstimateCase
from etude.decide.score import score

sys.path.insert(0, str(Path(__file__).parent))

from validate_nccl import Rows, fitted_half, key_of
from validate_vidur import FITTED

HERE = Path(__file__).parent
ERRORS = HERE / "held_out_errors.csv"
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


def calls(shared: Path, kept: Path) -> list[HeldOutRow]:
    """Single operators and collectives. Devices were fitted to the models FITTED of Vidur's operators, and to one half
    of the collectives inside a node; of the others every fourth operator is taken. Each device of Vidur's is a source,
    and each file of collectives."""
    operators, vidur = shared / "h200_ops.csv", shared / "vidur_ops.csv"
    found = held_rows(scored_rows(operators, kept), table(operators), "one H200")
    rows = table(vidur)
    records = [one for one in scored_rows(vidur, kept) if rows[one["row"] - 1]["model"] not in FITTED]
    found += [replace(row, source=f"Vidur: {row.case.device}", fitted=True) for row in held_rows(records[::4], rows)]
    for path in (shared / "nccl_allreduce.csv", shared / "vidur_collectives.csv"):
        rows = table(path)
        keys, nothing = tuple(map(key_of, rows)), np.zeros(len(rows))
        fit = fitted_half(Rows(keys, nothing, nothing))
        records = [one for one in scored_rows(path, kept) if not fit[one["row"] - 1]]
        found += [replace(row, source=path.stem, model=row.case.kind, fitted=True) for row in held_rows(records, rows)]
    return [row for row in found if row.case.kind != "between nodes"]


def programs(folder: Path | None) -> list[HeldOutRow]:
    """Eager programs of other people on one GPU, without any recording of theirs; without a folder as they are kept."""
    if folder is None:
        return read_rows().get("programs", []) if ERRORS.exists() else []
    from fit_recurrent import is_fitted
    from validate_dry_steps import program_of

    from etude.machine import open_system
    from etude.steps.program import PROGRAMS, is_recurrent, predict_program

    system, found = open_system("dgx-h200"), []
    for row in table(folder / "steps.csv"):
        name, batch = row["program"], int(row["batch"])
        program = program_of(name, batch, folder / "dry")
        if program is None:
            print(f"{name} x{batch} stops where values decide", file=sys.stderr)
            continue
        done = predict_program(program, system)
        step_ns = min(int(row["before_ns"]), int(row["after_ns"]))
        pairs = {
            "program step": (done.step_ns, step_ns),
            "program memory": (program.fullest.peak_allocated_bytes, int(row["peak_allocated_bytes"])),
        }
        for figure, (predicted, measured) in pairs.items():
            if figure == "program step" and is_recurrent(program.job) and is_fitted(name):
                continue
            case = EstimateCase(figure=figure, kind=PROGRAMS, device=row["device"] and system.device.name)
            error = float(np.log(predicted / measured))
            found.append(HeldOutRow(case=case, error=error, source=f"program {name}", model=name, fitted=True))
    return found


def say(rows: Sequence[HeldOutRow]) -> None:
    """What the errors of programs come to."""
    for figure in dict.fromkeys(row.case.figure for row in rows):
        of = [row for row in rows if row.case.figure == figure]
        off = 100 * np.expm1([row.error for row in of])
        median, tail = np.percentile(np.abs(off), (50, 90))
        count = f"{figure}: {len(of)} rows of {len({row.model for row in of})} programs"
        print(f"{count}, {median:.1f}% off in the median, {tail:.1f}% at p90, {off.min():+.1f}% to {off.max():+.1f}%")


# -- the file ----------------------------------------------------------------------------------------------------------

CASE: Final = tuple(EstimateCase.__slots__)
COLUMNS: Final = ("part", *CASE, "source", "model", "fitted", "error")
READ: Final[dict[str, Callable[[str], Any]]] = {
    "named": lambda text: text == "1",
    "gpus": int,
    "unstated": int,
    "batch": float,
    "elements": float,
}
PARTS: Final = ("training", "serving", "calls", "programs")


def write_rows(path: Path, found: dict[str, list[HeldOutRow]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        for part, rows in found.items():
            for row in rows:
                case = [_text(getattr(row.case, name)) for name in CASE]
                lines.writerow([part, *case, row.source, row.model, int(row.fitted), f"{row.error:.4f}"])


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(int(value) if isinstance(value, bool) else value)


def read_rows(path: Path = ERRORS) -> dict[str, list[HeldOutRow]]:
    """By the part of the predictions."""
    found: dict[str, list[HeldOutRow]] = defaultdict(list)
    for row in table(path):
        case = EstimateCase(**{name: READ.get(name, str)(row[name]) for name in CASE})
        error, fitted = float(row["error"]), row["fitted"] == "1"
        found[row["part"]].append(
            HeldOutRow(case=case, error=error, source=row["source"], model=row["model"], fitted=fitted)
        )
    return dict(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared"))
    parser.add_argument("--shared", type=Path, default=shared)
    parser.add_argument("--scored", type=Path, help="keep predicted rows here, and take those that are there")
    parser.add_argument("--outcomes", type=Path, help="the file of outcomes of fit_stacks.py")
    parser.add_argument("--programs", type=Path, help="the folder of time_foreign.py, with `dry/` of record_dry.py")
    parser.add_argument("--only", choices=PARTS, default="", help="renew the rows of this part alone")
    options = parser.parse_args()
    found = read_rows() if options.only and ERRORS.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        kept, measured = options.scored or Path(temporary), options.shared / "measured"
        kept.mkdir(parents=True, exist_ok=True)
        made: dict[str, Callable[[], list[HeldOutRow]]] = {
            "training": lambda: training(measured, kept, options.outcomes),
            "serving": lambda: served(measured, kept),
            "calls": lambda: calls(measured, kept),
            "programs": lambda: programs(options.programs),
        }
        for part in PARTS:
            if options.only in ("", part):
                found[part] = made[part]()
    write_rows(ERRORS, found)
    say(found["programs"])
    print(f"wrote {ERRORS}: {sum(map(len, found.values())):,} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
