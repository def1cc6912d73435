"""What is asked of costs alone: operators side by side, and other kernels of matrix products."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, text
from etude.base.outputs import Tabled
from etude.base.talk import say
from etude.machine.asked import OnDevice

if TYPE_CHECKING:
    from etude.machine import Device


@dataclass(frozen=True, kw_only=True)
class Contend(OnDevice):
    """The slowdown of an operator next to another, or on a device with occupied cores: one prediction per row of a file

    etude ops contend pairs.csv --device h200
    etude ops contend sms_held.csv --device h200 --json

    Columns of pairs: op, background, op_alone_ns, background_alone_ns, and op_flops, op_bytes, background_flops,
    background_bytes; of occupied cores: op, holder, sms_held, op_alone_ns, holder_bytes_per_s_alone. An empty time
    alone is predicted, too. `slowdown`, where the file has it, is shown as measured.
    """

    rows: str = argument(
        "path", "CSV file: one row for each pair, or for each number of occupied cores", like="other.csv"
    )
    output: Tabled = part(Tabled)


def contend_inputs(asked: Contend) -> "tuple[Device, Path]":
    from etude.machine import open_device

    return open_device(asked.device), Path(asked.rows)


def contended(given: "tuple[Device, Path]") -> list[dict[str, Any]]:
    from etude.cost.contention import predicted_rows

    return predicted_rows(*given)


def contend_table(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    errors = sorted(abs(r["predicted"] / r["measured"] - 1) for r in found if r["measured"] and r["covered"])
    if errors:
        say(f"{len(errors)} measured rows: median error {errors[len(errors) // 2]:.1%}")
    return [{name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()} for row in found]


@dataclass(frozen=True, kw_only=True)
class ProductKernels(OnDevice):
    """The speed of other kernels for bf16 matrix products, by closed forms at the device's peak rates

    etude ops kernels 1,4096,4096 --kernel product:w4a16:g128 --kernel product:lcma:auto --device h200
    etude ops kernels 256,256,256 1024,1024,1024 --kernel product:array:64,64,64 --device versal-aie16
    etude ops kernels 512,3072,3072 --units auto --device phone-sme

    `GOP/s` counts the operations of the plain product, whichever way it is done.
    """

    shapes: tuple[str, ...] = argument("paths", "shapes of matrix products: `M,N,K`", metavar="M,N,K...", like="8,8,8")
    kernel: tuple[str, ...] = figure(
        "several", "`product:w4a16:g128`, `product:lcma:auto`, ...", (), like="product:w8a8"
    )
    units: str = text("units of the device: `auto`, a name, or a split: `cpu+sme`", like="auto")
    output: Tabled = part(Tabled)


@dataclass(frozen=True, slots=True)
class KernelInputs:
    device: "Device"
    shapes: tuple[tuple[int, int, int], ...]
    kernels: tuple[str, ...]
    units: str


def kernel_inputs(asked: ProductKernels) -> KernelInputs:
    from etude.cost.menu import PLAIN
    from etude.machine import open_device

    shapes = tuple(_shape(text) for text in asked.shapes)
    kernels = tuple(dict.fromkeys((PLAIN, *asked.kernel)))
    return KernelInputs(open_device(asked.device), shapes, kernels, asked.units)


def _shape(text: str) -> tuple[int, int, int]:
    parts = [one.strip() for one in text.split(",")]
    if len(parts) != 3 or not all(one.isdecimal() and int(one) > 0 for one in parts):
        raise UsageError(f"`{text}` is not M,N,K", where="SHAPES", hint="1,4096,4096")
    m, n, k = map(int, parts)
    return m, n, k


def kernel_rows(given: KernelInputs) -> list[dict[str, Any]]:
    from etude.cost.menu import kernel_figures

    rows = []
    for shape in given.shapes:
        mine = [kernel_figures(given.device, *shape, name, given.units) for name in given.kernels]
        rows += [one | {"speedup": mine[0]["time_ns"] / one["time_ns"]} for one in mine]
    return rows


def kernel_table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_kernel_row(row) for row in rows]


def _kernel_row(row: dict[str, Any]) -> dict[str, Any]:
    """The most important figures of a row, formatted."""
    energy = {} if row["energy_j"] is None else {"W": round(row["mean_w"], 3), "mJ": round(row["energy_j"] * 1e3, 4)}
    shown = row["kernel"] if row["kernel"] == row["taken"] else f"{row['kernel']}: {row['taken']}"
    return {
        "product": f"{row['m']},{row['n']},{row['k']}",
        "kernel": shown,
        **({"units": row["units"]} if row["units"] else {}),
        "time us": round(row["time_ns"] / 1e3, 3),
        "speed-up": round(row["speedup"], 3),
        "GOP/s": round(row["operations_per_s"] / 1e9, 1),
        "MB": round(row["size_bytes"] / 1e6, 3),
        "iterations": row["iterations"],
        **energy,
    }
