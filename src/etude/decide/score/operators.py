"""Operators: measured times of single ops, as `etude ops measure` of another tool, or Vidur's profiles."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from etude.base.errors import UsageError
from etude.cost import ops
from etude.cost.calibrate import row_work
from etude.cost.compute import compute_time_ns
from etude.cost.estimates import EstimateCase, estimate_of
from etude.cost.ops import OpTable, Work
from etude.decide.score.devices import device_of
from etude.decide.score.kind import CsvRow, Item, PredictedRow, ScoreKind, ScoreRequest, check_device, table_rows
from etude.decide.score.source import ScoreFile
from etude.machine import device_names
from etude.model.schema import UNKNOWN

DEVICE: Final = "h200"
PLAIN: Final = ("op", "shape", "flops", "bytes", "microseconds")
FIGURE: Final = "time of an operator"
KINDS: Final = {True: "products and attention", False: "other operators"}
PRODUCTS: Final = ("linear", "matmul", "gemm", "bmm", "sdpa", "grouped", "attn_pre", "attn_post", "mlp_up", "mlp_down")
"""How names of products, and of attention, begin."""
VIDUR: Final = ("device", "op", "tokens", "tp", "heads", "kv_heads", "hidden", "ffn", "gated", "median_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedRow:
    """A row whose operator was priced; `problem`: why it was not."""

    row: CsvRow
    time_ns: int = UNKNOWN
    problem: str = ""


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    timed: PricedRow = item.value
    if timed.problem:
        raise UsageError(timed.problem)
    plain = "microseconds" in timed.row
    assumed = [] if plain else ["operands in bf16"]
    assumed += [] if plain else ["norms, sums and embeddings are not split over tensor-parallel ranks"]
    assumed += [f"device {DEVICE}: the row names none"] if plain and not asked.system else []
    measured_ns = round(float(timed.row["microseconds" if plain else "median_us"]) * 1000)
    predicted = {"time_s": timed.time_ns / 1e9}
    found = estimate_of(predicted["time_s"], operator_case(timed.row, _named(timed.row, asked)))
    return PredictedRow(
        measured={"time_s": measured_ns / 1e9}, predicted=predicted, assumed=assumed, estimates={"time_s": found}
    )


def operator_case(row: CsvRow, device: str) -> EstimateCase:
    """What the errors of a single operator depend on: products and attention, or what is bound by the memory."""
    products = row["op"].startswith(PRODUCTS)
    return EstimateCase(figure=FIGURE, kind=KINDS[products], device=device_of(device).name)


def timed_rows(path: Path, asked: ScoreRequest) -> list[Item]:
    """All rows, priced together for each device."""
    items = table_rows(path, asked)
    works: dict[str, list[tuple[int, Work]]] = {}
    problems: dict[int, str] = {}
    for place, item in enumerate(items):
        try:
            works.setdefault(_named(item.value, asked), []).append((place, work_of(item.value)))
        except UsageError as problem:
            problems[place] = problem.problem
        except (ValueError, KeyError, IndexError, OverflowError, ZeroDivisionError) as problem:
            problems[place] = f"a value cannot be read: {problem}"
    times: dict[int, int] = {}
    for name, of in works.items():
        found = compute_time_ns(device_of(name), OpTable.of([work for _, work in of]))
        times |= dict(zip([place for place, _ in of], found.tolist(), strict=True))
    problems |= {place: "the cost of the operator is not known" for place, time_ns in times.items() if time_ns < 0}
    return [
        Item(item.label, PricedRow(row=item.value, time_ns=times.get(place, UNKNOWN), problem=problems.get(place, "")))
        for place, item in enumerate(items)
    ]


def _named(row: CsvRow, asked: ScoreRequest) -> str:
    """Name of the system or device that was given, else of the row's device."""
    name = asked.system or row.get("device") or DEVICE
    if not asked.system and name not in device_names():
        raise UsageError(f"device `{name}` is not in the catalogue")
    return name


def work_of(row: CsvRow) -> Work:
    return row_work(row) if set(PLAIN) <= row.keys() else vidur_work(row)


def vidur_work(row: CsvRow) -> Work:
    """The operator of a row of Vidur on one of its tensor-parallel ranks; norms, sums and embeddings are not split."""
    tokens, tp, hidden, heads = (int(row[name]) for name in ("tokens", "tp", "hidden", "heads"))
    size, kv_heads, ffn = hidden // heads, int(row["kv_heads"]), int(row["ffn"]) // tp
    gated = row["gated"] == "True"
    projected = (heads + 2 * kv_heads) // tp * size
    match row["op"]:
        case "attn_pre_proj":
            return ops.matmul(tokens, projected, hidden)
        case "attn_post_proj":
            return ops.matmul(tokens, hidden, heads // tp * size)
        case "mlp_up_proj":
            return ops.matmul(tokens, ffn * (2 if gated else 1), hidden)
        case "mlp_down_proj":
            return ops.matmul(tokens, hidden, ffn)
        case "mlp_act":
            # the gated one is a kernel of its own, with a block for each token
            return ops.activation(tokens * ffn, inputs=2 if gated else 1, row_width=ffn if gated else 0)
        case "input_layernorm" | "post_attention_layernorm":
            return ops.normalisation(tokens, hidden)
        case "attn_rope":
            return ops.elementwise(tokens * (heads + kv_heads) // tp * size)
        case "add":
            return ops.elementwise(tokens * hidden, inputs=2)
        case "emb":
            return ops.embedding(tokens, hidden)
    raise UsageError(f"operator `{row['op']}` is not known")


def _holds(source: ScoreFile) -> bool:
    return source.has(*PLAIN) or source.has(*VIDUR)


KIND: Final = ScoreKind(
    name="operators",
    doc="CSV of single operators: op, shape, flops, bytes, microseconds; or Vidur's device, op, tokens, tp, ...",
    holds=_holds,
    rows=timed_rows,
    predict=predict,
    reads=frozenset({"system"}),
    check=check_device,
)
