"""Rows of a table of training steps: each becomes a model and a plan, is predicted, and is compared with its figure.

Columns are those of published tables: model, layers, hidden, heads, ffn, vocab, params, seq, gpus, gpu_type, tp, pp,
dp, cp, ep, interleave, micro_batch, global_batch, recompute, precision, stack, year, measured_metric, value, unit,
notes; of models also kv_heads, gated, tied and those of experts (`row_models`), and `train` for what is trained
(`row_training`). Each may be missing or empty. The rules never see the value of a row, nor where it was published.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import Any, Final

from etude.base.errors import EtudeError, FormatError, UsageError
from etude.cost.estimates import columns
from etude.cost.stacks import Stack, generation_of, open_stack
from etude.cost.stacks.open import DEFAULT, stack_in
from etude.machine.system import System
from etude.make.generate import Plan
from etude.make.generate.model import Model
from etude.make.generate.train import sequence_of
from etude.steps.estimates import open_settings
from etude.steps.measured.gpus import gpu_system
from etude.steps.measured.recipes import CHUNKS, RunFacts, completed
from etude.steps.measured.row_estimates import row_estimate
from etude.steps.measured.row_figures import SECONDS, out_of_scope, step_seconds, whole
from etude.steps.measured.row_models import EXPERTS, SHAPE, SWITCHES, row_model
from etude.steps.measured.row_training import trained_fields
from etude.steps.measured.row_words import noted_fields, recompute_fields
from etude.steps.measured.unsaid import unsaid
from etude.steps.step import step_time

Row = Mapping[str, str]

NEEDED: Final = ("model", "gpu_type", "value", "unit")
COUNTS: Final = ("gpus", "tp", "pp", "cp", "ep", "micro_batch", "global_batch", "seq")
TEXTS: Final = ("recompute", "precision", "stack", "train", "measured_metric", "notes")
NUMBERS: Final = ("kv_heads", "params", "dp", "interleave", "lora_rank", "year")
COLUMNS: Final = {*NEEDED, *COUNTS, *SHAPE, *EXPERTS, *SWITCHES, *TEXTS, *NUMBERS}
"""Everything that is read of a row."""
YEARS: Final = {"volta": 2020, "ampere": 2022, "hopper": 2024}
"""Default year of a row, by its GPU; 2025 for any other."""
SPARE: Final = 1.05
"""Estimated memory that a row may need, relative to what there is: it is an estimate, and the published run did fit."""
BATCH: Final = 8
"""Micro-batches for each pipeline rank of a row without a batch."""
PRECISIONS: Final = (("fp4", "fp4"), ("float4", "fp4"), ("fp8", "fp8"), ("float8", "fp8"), ("bf16", "bf16"),
                     ("bfloat16", "bf16"), ("fp16", "fp16"), ("half", "fp16"), ("float16", "fp16"), ("fp32", "fp32"),
                     ("float32", "fp32"), ("tf32", "fp32"))  # fmt: skip
"""Words of a precision -> that of a plan; the first word that the text has decides: `nvfp4`, `mxfp8`, `fp8-cs`."""
RELEASE: Final = re.compile(r"\b(2\d)\.(0[1-9]|1[0-2])\b")
"""Releases that are called by their year and month: 25.04."""
CONTAINER: Final = re.compile(r"\b(?:container|release) (2\d\.(?:0[1-9]|1[0-2]))\b", re.IGNORECASE)
"""How notes name the release of a stack."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One row, ready to be predicted."""

    row: int
    """Its number in the file, from 1."""
    model: Model
    plan: Plan
    system: System
    stack: Stack
    step_s: float
    """The published figure as the time of a step."""
    assumed: tuple[str, ...]
    year: int = 0
    """Year of the run; the stack is as it was then. 0: the current one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A row that cannot be predicted, and why."""

    row: int
    why: str


def read_rows(path: str | PathLike[str]) -> list[dict[str, str]]:
    """Rows of a CSV file with the columns of published tables."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        text = getattr(problem, "strerror", None) or problem
        raise FormatError(f"cannot be read: {text}", path=fspath(path)) from None
    if not rows:
        raise FormatError("has no rows", path=fspath(path))
    missing = [name for name in NEEDED if name not in rows[0]]
    if missing:
        raise FormatError(f"no column `{missing[0]}`", path=fspath(path), hint=f"needed: {', '.join(NEEDED)}")
    return [{k: (v or "").strip() for k, v in row.items() if isinstance(k, str)} for row in rows]


def unread_columns(rows: list[dict[str, str]]) -> list[str]:
    """Columns that some row fills in, and that change nothing; misspelled ones are among them."""
    return [name for name in rows[0] if name not in COLUMNS and any(row.get(name) for row in rows)]


def cases_of(rows: list[dict[str, str]], stack: Stack | None = None) -> Iterator[Case | Refused]:
    """Each training row as a case, or the reason against it; rows of serving and bandwidth are skipped. `stack`
    overrides that of the rows."""
    for number, row in enumerate(rows, 1):
        if not out_of_scope(row):
            yield case_or_refused(row, number, stack)


def case_or_refused(row: Row, number: int, stack: Stack | None = None, system: System | None = None) -> Case | Refused:
    """A row as a case, or the reason against it. `stack` and `system` override those of the row."""
    if out_of_scope(row):
        return Refused(row=number, why="a row of serving or bandwidth, not of a training step")
    try:
        return case_of(row, number, stack, system)
    except EtudeError as problem:
        return Refused(row=number, why=problem.problem)
    except (ValueError, OverflowError) as problem:
        return Refused(row=number, why=f"a value cannot be read: {problem}")


def case_of(row: Row, number: int, stack: Stack | None = None, system: System | None = None) -> Case:
    said: list[str] = []
    system = system or gpu_system(row.get("gpu_type", ""))
    model = row_model(row, said)
    release = _release(row)
    released = 2000 + int(release[:2]) if release else 0
    year = whole(row, "year") or released or YEARS.get(generation_of(row["gpu_type"]), 2025)
    stack = stack or row_stack(row, year, said)
    given = _given(row, model, stack.policies, said) | trained_fields(row, stack.family, said)
    system = _whole_domains(system, int(given["gpus"]), said)
    model = _padded(model, int(given.get("tp", 1)), said)
    run = RunFacts(
        model=model,
        given=given,
        system=system,
        gpu=row["gpu_type"],
        year=year,
        release=release,
        spare=SPARE,
        open_axes=not {"tp", "pp"} & set(given),
    )
    plan, assumed = completed(run, stack)
    return Case(
        row=number,
        model=model,
        plan=plan,
        system=system,
        stack=stack.in_year(year),
        year=year,
        step_s=step_seconds(row, model, plan, system),
        assumed=(*said, *assumed),
    )


def _release(row: Row) -> str:
    """The release of a row's stack, by year and month; empty: none is said."""
    found = RELEASE.search(row.get("stack", ""))
    noted = CONTAINER.search(row.get("notes", ""))
    return found[0] if found else noted[1] if noted else ""


def _whole_domains(system: System, gpus: int, said: list[str]) -> System:
    """The system with as many GPUs of an innermost domain as jobs take: groups of ranks are powers of two, and
    schedulers place them within racks, so of 72 GPUs a job of several racks has 64."""
    first, *outer = system.levels
    most: int = 1 << (first.size.bit_length() - 1)
    if gpus <= first.size or most == first.size or gpus % most:
        return system
    said.append(f"{most} of the {first.size} GPUs of each {first.name} domain")
    return system.replace(levels=(replace(first, size=most), *outer))


def _padded(model: Model, tp: int, said: list[str]) -> Model:
    """The model with columns of its feed-forward that tensor-parallel ranks can share, as programs pad them."""
    ffn = -(-model.ffn // tp) * tp
    if ffn == model.ffn:
        return model
    said.append(f"feed-forward padded from {model.ffn:,} to {ffn:,} columns for {tp} tensor-parallel ranks")
    return model.replace(ffn=ffn)


def row_stack(row: Row, year: int, said: list[str]) -> Stack:
    """The stack by the column `stack`; the default if it is empty or unknown."""
    name = row.get("stack", "")
    found = stack_in(name, year) if name else None
    if found is None:
        said.append(f"default stack (`{name}` is not known)" if name else "default stack")
        return open_stack(DEFAULT)
    if found.name != name:
        said.append(f"stack {found.name} for `{name}`")
    return found


def _given(row: Row, model: Model, policies: Mapping[str, str], said: list[str]) -> dict[str, Any]:
    """Fields of a plan that a row gives; `policies` are words of its stack for recomputation."""
    given: dict[str, Any] = {name: whole(row, name) for name in COUNTS if row.get(name)}
    notes, again = row.get("notes", ""), row.get("recompute", "").lower()
    if row.get("tp") or row.get("pp"):
        given = {"tp": 1, "pp": 1, "cp": 1, "ep": 1} | given
    if "gpus" not in given:
        given["gpus"] = _ranks(row, given)
    given["precision"] = _precision(row.get("precision", ""))
    if "seq" not in given:
        given["seq"] = sequence_of(model)
        said.append(f"sequence {given['seq']:,}")
    if "global_batch" not in given:
        if row.get("unit", "").lower() in SECONDS and "micro_batch" not in given:
            raise UsageError("the time of a step of an unknown batch", hint="columns global_batch, micro_batch")
        given["global_batch"] = _batch(given)
        said.append(f"batch {given['global_batch']:,}")
    if "sequence parallel" in again and given.get("tp", 1) > 1:
        given["sp"] = True
    given |= recompute_fields(again, policies, said)
    given |= noted_fields(notes, tp=given.get("tp", 1), gated=model.gated, stack=row.get("stack", ""))
    return given | _schedule(row, given, model)


def _precision(text: str) -> str:
    """That of a plan; bf16 if the row says none."""
    lower = text.lower()
    found = [(lower.index(word), precision) for word, precision in PRECISIONS if word in lower]
    if text and not found:
        raise UsageError(f"the precision `{text}` is not known", hint="fp4, fp8, bf16, fp16, fp32")
    return min(found)[1] if found else "bf16"


def _ranks(row: Row, given: Mapping[str, Any]) -> int:
    if not row.get("dp"):
        raise UsageError("neither `gpus` nor `dp` is given")
    return whole(row, "dp") * given.get("tp", 1) * given.get("pp", 1) * given.get("cp", 1)


def _batch(given: Mapping[str, Any]) -> int:
    pp = given.get("pp", 1)
    copies = max(given["gpus"] // (given.get("tp", 1) * pp * given.get("cp", 1)), 1)
    return int(copies * given.get("micro_batch", 1) * BATCH * pp)


def _schedule(row: Row, given: Mapping[str, Any], model: Model) -> dict[str, Any]:
    """Chunks that a row says; without a pipeline, or where they do not fit, it is not interleaved. Of a row that says
    no axis nothing is known."""
    pp, chunks = given.get("pp", 0), whole(row, "interleave")
    if not pp:
        return {}
    if pp == 1:
        return {"schedule": "1f1b"}
    notes = row.get("notes", "").lower()
    if not chunks and "interleaved" in notes:
        return {CHUNKS: "2"}
    if not chunks:
        return {"schedule": "1f1b"} if re.search(r"\b1f1b\b(?! overlap)", notes) else {}
    per_pipe = given["global_batch"] // _copies(given) // given.get("micro_batch", 1)
    fits = per_pipe % pp == 0 and model.layers >= pp * chunks
    return {"schedule": f"interleaved:{chunks}" if chunks > 1 and fits else "1f1b"}


def _copies(given: Mapping[str, Any]) -> int:
    return max(given["gpus"] // (given.get("tp", 1) * given.get("pp", 1) * given.get("cp", 1)), 1)


def predict_rows(
    rows: list[dict[str, str]], stack: Stack | None = None, *, advance: Callable[[int], None] = lambda n: None
) -> list[dict[str, Any]]:
    """A record for each training row: its number, measured and predicted seconds of a step, or why it is refused."""
    found: list[dict[str, Any]] = []
    for case in cases_of(rows, stack):
        record = predicted_case(case)
        if not isinstance(case, Refused):
            advance(1)
            if "assumed" in record:
                row = rows[case.row - 1]
                record["assumed"] += unsaid(row, case, spare=SPARE)
                estimate = row_estimate(case, record["predicted"]["step"], unstated=open_settings(row))
                record |= columns({"step": estimate})
        found.append(record)
    return found


def predicted_case(case: Case | Refused) -> dict[str, Any]:
    """The record of a row."""
    if isinstance(case, Refused):
        return {"row": case.row, "refused": case.why}
    try:
        time_s = step_time(case.model, case.plan, case.system, case.stack)
    except EtudeError as problem:
        return {"row": case.row, "refused": problem.problem}
    return {"row": case.row, "measured": {"step": case.step_s}, "predicted": {"step": time_s},
            "stack": case.stack.name, "assumed": list(case.assumed)}  # fmt: skip
