"""Rows of measured contention, predicted: concurrent operators, and operators on a device with occupied cores.

The columns are those of the files: `op`, `background` and both times alone; or `op`, `holder`, `sms_held`. An operator
is known by its name where that has a shape (`gemm_4096`, `gemm_m64_n8192_k8192`, `attn_1x32x4096x128`,
`layernorm_16384x4096`, `h2d_256MiB`), and else by its FLOPs and bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.files import csv_rows
from etude.cost.contention.launches import COPY_ENGINE, Launch, launch_of
from etude.cost.contention.meeting import beside, held
from etude.cost.ops import OpClass, Work
from etude.machine.system import Device
from etude.model.schema import UNKNOWN

PAIR: Final = ("op", "background", "op_alone_ns", "background_alone_ns")
HELD: Final = ("op", "holder", "sms_held", "op_alone_ns")
ROWS: Final = {"layernorm": OpClass.NORMALISATION, "rmsnorm": OpClass.NORMALISATION, "softmax": OpClass.SOFTMAX}
MATRIX_INTENSITY: Final = 32.0
"""FLOPs per byte above which an operator without a shape is a product."""
Launches = dict[tuple[str, ...], Launch]


def predicted_rows(device: Device, path: str | PathLike[str]) -> list[dict[str, Any]]:
    """One entry for each row of a file: its number, `measured` and `predicted` slowdown (None if not measured), the
    predicted time in ns, and `kind`: `pair` or `held`."""
    where = str(path)
    columns, rows = csv_rows(path)
    if not is_contention(columns):
        raise UsageError(
            "does not have the columns of either kind", where=where, hint=f"{', '.join(PAIR)}; or {', '.join(HELD)}"
        )
    launches: dict[tuple[str, ...], Launch] = {}
    return [predicted_row(device, row, number, where, launches) for number, row in enumerate(rows)]


def is_contention(columns: Iterable[str]) -> bool:
    """Whether a file with these columns has rows of contention."""
    there = set(columns)
    return set(PAIR) <= there or set(HELD) <= there


def predicted_row(
    device: Device, row: Mapping[str, str], number: int, where: str = "", launches: Launches | None = None
) -> dict[str, Any]:
    """The entry of one row; `launches` has those of operators that were seen."""
    at, known = f"{where}: row {number}" if where else f"row {number}", {} if launches is None else launches
    op = _launch(device, row, "op", at, known)
    paired = set(PAIR) <= row.keys()
    if paired:
        time_ns = beside(device, op, _launch(device, row, "background", at, known))
    else:
        drawn = _number(row, "holder_bytes_per_s_alone", at, 0.0)
        time_ns = held(device, op, _cores(device, row, at), drawn)
    return {
        "row": number,
        "op": row["op"],
        "beside": row["background" if paired else "holder"],
        "measured": _measured(row, at),
        "predicted": time_ns / op.alone_ns,
        "predicted_ns": time_ns,
        "covered": row.get("covered", row.get("holder_covered_op", "1")) != "0",
    }


def _cores(device: Device, row: Mapping[str, str], at: str) -> int:
    count = _number(row, "sms_held", at)
    if count != int(count) or count >= device.cores:
        raise UsageError(f"`sms_held`: {count:g} of {device.cores} cores", where=at, hint="from none to all but one")
    return int(count)


def _measured(row: Mapping[str, str], at: str) -> float | None:
    """The slowdown, from its own column or from both times."""
    if found := _number(row, "slowdown", at, 0.0):
        return found
    alone, with_it = _number(row, "op_alone_ns", at, 0.0), _number(row, "op_with_background_ns", at, 0.0)
    with_it = with_it or _number(row, "op_ns", at, 0.0)
    return with_it / alone if alone and with_it else None


def _launch(device: Device, row: Mapping[str, str], who: str, at: str, known: dict[tuple[str, ...], Launch]) -> Launch:
    key = tuple(row.get(name, "") for name in (who, f"{who}_alone_ns", f"{who}_flops", f"{who}_bytes"))
    if key not in known:
        flops, size = _number(row, f"{who}_flops", at, 0.0), _number(row, f"{who}_bytes", at, 0.0)
        alone = _number(row, f"{who}_alone_ns", at, 0.0)
        if not row[who]:
            raise UsageError(f"`{who}` has no name", where=at)
        copies = next((way for way in COPY_ENGINE if row[who].startswith(f"{way}_")), "")
        try:
            known[key] = launch_of(device, work_of(row[who], flops, size), alone, copies)
        except UsageError as problem:
            raise UsageError(f"`{row[who]}`: {problem.problem}", where=at, hint=problem.hint) from None
    return known[key]


def work_of(name: str, flops: float, size_bytes: float) -> Work:
    """The operator behind a name."""
    given: dict[str, Any] = {
        "flops": int(flops) if flops else UNKNOWN,
        "size_bytes": int(size_bytes) if size_bytes else UNKNOWN,
        "dtype": "bf16",
    }
    if found := re.fullmatch(r"gemm_m(\d+)_n(\d+)_k(\d+)", name):
        m, n, k = map(int, found.groups())
        return Work(op_class=OpClass.GEMM, m=m, n=n, k=k, **given)
    if found := re.fullmatch(r"gemm_(\d+)", name):
        side = int(found[1])
        return Work(op_class=OpClass.GEMM, m=side, n=side, k=side, **given)
    if found := re.fullmatch(r"attn_(\d+)x(\d+)x(\d+)x(\d+)", name):
        batch, heads, seq, head = map(int, found.groups())
        return Work(op_class=OpClass.ATTENTION, m=seq, n=seq, k=head, batch=batch * heads, **given)
    kind, _, shape = name.partition("_")
    if kind in ROWS and (found := re.fullmatch(r"(\d+)x(\d+)", shape)):
        return Work(op_class=ROWS[kind], m=int(found[1]), n=int(found[2]), **given)
    if size_bytes and flops / size_bytes > MATRIX_INTENSITY:
        side = max(round((flops / 2) ** (1 / 3)), 1)
        return Work(op_class=OpClass.GEMM, m=side, n=side, k=side, **given)
    return Work(op_class=OpClass.ELEMENTWISE, **given)


def _number(row: Mapping[str, str], name: str, at: str, default: float | None = None) -> float:
    text = (row.get(name) or "").strip()
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"`{name}`: `{text}` is not a number", where=at) from None
    if not 0 <= value < 1e18:
        raise UsageError(f"`{name}`: {text} is out of range", where=at)
    return value
