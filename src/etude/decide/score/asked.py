"""What is asked of measurements that are compared with predictions."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, text
from etude.base.outputs import OutputPlace, Printed, Written
from etude.base.parameters import given_in, is_given, only_one, spelled
from etude.base.talk import progress, say
from etude.world.serve import Engine

if TYPE_CHECKING:
    from etude.decide.score.scoring import PreparedRows, Scored

ROWS, REQUESTS = "Which rows", "Measured requests"
SHOWN = 8
"""Assumptions and reasons that are printed."""


@dataclass(frozen=True, kw_only=True)
class Score(Written):
    """How right is Etude about what you measured? Errors of every figure, and what was assumed

    etude score measured/published_train.csv
    etude score measured/ml_energy_llm.csv --first 20 --json
    etude score nccl_tests.txt --system dgx-h100
    etude score measured/vllm_runs/RTX4090/Llama-3.1-8B --ops measured/profile
    etude score bench.json --model llama3-8b --system dgx-h100 --max-num-seqs 128
    etude score measured/h200_extra/offload -o scored.csv
    etude score counted.csv --kind energy

    The kind of a file is known by its content: training steps, serving, images, runs of engines, requests of a
    benchmark client, operators, collectives, energy, contention, offload, packets, pairs of recordings. Each row is
    predicted as `etude predict`, `serve`, `energy`, `ops` or `simulate` would. A median and a 90th percentile are of
    the absolute error, the bias is the median of the signed one; all relative to what was measured.
    """

    files: tuple[str, ...] = argument(
        "paths", "files or folders of measurements", metavar="FILE...", like=["copies.csv"]
    )
    kind: str = text("kind of the files, where their content fits several", like="energy", metavar="NAME", panel=ROWS)
    first: int = figure("count", "score only the first rows, this many; 0: all", 0, panel=ROWS)
    rows: str = text("score only these rows: `3,7-9`; they count from 1", like="1", panel=ROWS)
    system: str = figure(
        "noun", "simulate there, instead of what rows name: a system, or a file", "", names=("-s",), like="dgx-a100"
    )
    stack: str = figure("noun", "software stack, instead of what rows name", "", like="none")
    ops: str | None = figure("path", "database of `etude ops`, or profile folder of the engine", None, like="ops.db")
    model: str = figure("noun", "model that answered the requests", "", like="gpt2", panel=REQUESTS)
    tp: int = figure("count", "tensor-parallel ranks of a replica", 1, panel=REQUESTS)
    ep: int = figure("count", "ranks over which experts are spread", 1, panel=REQUESTS)
    precision: str = figure("text", "data type of weights and products", "bf16", like="fp8", panel=REQUESTS)
    kv_dtype: str = text("data type of keys and values; default: that of the computation", like="fp8", panel=REQUESTS)
    replicas: int = figure("count", "copies of the model", 1, panel=REQUESTS)
    router: str = figure("text", "router of `etude serve`", "least", like="turn", panel=REQUESTS)
    engine: Engine = part(Engine, "The engine of measured requests")
    out: str | None = figure(
        "out", "file for the rows: `.csv`, `.json` or `.parquet`", None, names=("-o",), like="new.csv"
    )
    output: Printed = part(Printed)


OPTIONS = ("system", "stack", "model", "tp", "ep", "precision", "kv_dtype", "replicas", "router")


@dataclass(frozen=True, slots=True)
class ScoreInputs:
    files: "tuple[PreparedRows, ...]"
    notes: tuple[str, ...]
    place: OutputPlace | None


def score_inputs(asked: Score) -> ScoreInputs:
    from etude.decide.score.scoring import prepared, scored_files
    from etude.decide.score.written import check_name

    only_one(asked, "first", "rows")
    options: dict[str, Any] = {name: getattr(asked, name) for name in OPTIONS if is_given(asked, name)}
    options |= {"ops": Path(asked.ops)} if asked.ops is not None else {}
    options |= {"kind": asked.kind, "first": asked.first, "rows": asked.rows, "engine": given_in(asked.engine)}

    def named(name: str) -> str:
        return spelled(asked, name)

    def of_file(path: Path) -> "PreparedRows":
        try:
            return prepared(path, spelled=named, **options)
        except UsageError as problem:
            where = problem.where if problem.where not in ("", str(path)) else f"FILES: {path}"
            raise UsageError(problem.problem, where=where, hint=problem.hint) from None

    place = OutputPlace.of(asked)
    if place is not None:
        check_name(place.path)
    paths, notes = scored_files(asked.files, kind=asked.kind, spelled=named)
    return ScoreInputs(tuple(map(of_file, paths)), tuple(notes), place)


def scored(given: ScoreInputs) -> "list[Scored]":
    from etude.decide.score.written import write_rows

    for note in given.notes:
        say(f"note: {note}")
    found = []
    for one in given.files:
        with progress(f"scoring {one.file.name}", len(one.chosen())) as advance:
            found.append(one.scored(advance))
    if (place := given.place) is not None:
        say(f"wrote {place.path}: {write_rows(found, place.path, force=place.force):,} rows")
    return found


def score_record(found: "list[Scored]") -> dict[str, Any]:
    from etude.decide.score.scoring import document

    return document(found)


def score_rows(found: "list[Scored]") -> list[dict[str, Any]]:
    """A row for each figure."""
    return [row for one in found for row in _rows(one, several=len(found) > 1)]


def _rows(one: "Scored", *, several: bool) -> list[dict[str, Any]]:
    known = one.summary()
    refused = sum(known.pop("refused").values())
    file = {"file": one.file.name} if several else {}
    lines = [
        {**file, "kind": one.kind, "figure": name, "rows": its["rows"], "median": f"{its['median']:.1%}",
         "p90": f"{its['p90']:.1%}", "bias": f"{its['bias']:+.1%}", "refused": refused}
        for name, its in known.items()
    ]  # fmt: skip
    nothing = {"figure": None, "rows": 0, "median": None, "p90": None, "bias": None, "refused": refused}
    return lines or [{**file, "kind": one.kind, **nothing}]


def score_words(found: "list[Scored]") -> Iterator[str]:
    """Why rows were refused, and what was assumed of how many."""
    for one in found:
        where = f"{one.file.name}: " if len(found) > 1 else ""
        for name, (own, catalogue) in one.farther().items():
            yield f"{where}note: {name} is farther off with the profile, {own:.1%} instead of {catalogue:.1%}"
        refused = one.summary()["refused"]
        assumed = Counter(text for row in one.rows for text in row.get("assumed", ()))
        for what, counted in (("refused", refused), ("assumed", assumed)):
            for reason, count in list(dict(Counter(counted).most_common()).items())[:SHOWN]:
                yield f"{where}{what}, {count:,} {'row' if count == 1 else 'rows'}: {reason}"
            if len(counted) > SHOWN:
                yield f"{where}{what}: {len(counted) - SHOWN:,} more, in --json"
