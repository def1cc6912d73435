from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli import ops_tiers
from etude.surface.cli.app import RUN, app
from etude.surface.cli.groups import Group
from etude.surface.cli.output import AsCsv, AsJson, AsMarkdown, emit, progress, say

if TYPE_CHECKING:
    from etude.machine import System
    from etude.steps.operators import Needs

ops = typer.Typer(
    cls=Group,
    help="A database of measured operators: find what is missing for a set of models, measure, show, add, import",
    no_args_is_help=True,
)
app.add_typer(ops, name="ops", rich_help_panel=RUN)

Models = Annotated[
    list[str], typer.Argument(help="Models: names, Hugging Face ids, YAML files, `config.json`.", show_default=False)
]
Db = Annotated[Path, typer.Option("--db", help="File of the database.")]
DEFAULT = Path("operators.ops")
DeviceName = Annotated[str, typer.Option("--device", "-d", help="Device: a name in the catalogue, or your own.")]
Ways = Annotated[str, typer.Option("--tp", help="Tensor-parallel sizes: `1,2,4`.")]
Train = Annotated[bool, typer.Option("--train", help="Keys of training steps instead of serving.")]
Tokens = Annotated[str, typer.Option(help="Tokens per prompt or sample; default: `128,512,2048,8192`.")]
Batch = Annotated[
    str,
    typer.Option(help="Decoding sequences, or samples of a micro-batch; default: `1,4,16,64,256`, or 1 for training."),
]
Keys = Annotated[str, typer.Option(help="Context length of each decoding sequence; default: `512,2048,8192`.")]
Recipe = Annotated[str, typer.Option("--stack", help="Software stack whose recipe training follows.")]
Repeats = Annotated[int, typer.Option(min=1, max=100, help="How often each point is measured.")]
Backend = Annotated[str, typer.Option(help="Name of the backend whose kernels are measured.")]
FLUSH = 64
"""Points after which the file is written."""


@ops.command()
def missing(
    models: Models,
    tp: Ways = "1",
    db: Db = DEFAULT,
    device: DeviceName = "h200",
    train: Train = False,
    tokens: Tokens = "",
    batch: Batch = "",
    keys: Keys = "",
    stack: Recipe = "eager",
    repeats: Repeats = 3,
    json: AsJson = False,
) -> None:
    """The keys that a database is missing for a set of models, and the time to measure them

    etude ops missing llama3-8b qwen3-8b --tp 1,2,4 --db h200.ops

    Models that share dimensions share keys: `saved` is the fraction of keys saved by this. A missing file counts as an
    empty database.
    """
    found = _needs(models, tp, db, device, train, tokens, batch, keys, stack, repeats)
    numbers = found.summary()
    if json:
        emit(numbers, json=True)
        return
    emit(found.by_op())
    say(f"{numbers['keys']:,} keys of {len(found.uses)} models and splits, {numbers['distinct']:,} distinct: "
        f"{numbers['saved_fraction']:.1%} saved")  # fmt: skip
    say(f"{numbers['missing']:,} keys and {numbers['points_missing']:,} of {numbers['points']:,} points are missing; "
        f"measuring them takes about {numbers['cost_s']:,.0f} s")  # fmt: skip


@ops.command()
def measure(
    models: Models,
    tp: Ways = "1",
    db: Db = DEFAULT,
    device: DeviceName = "",
    train: Train = False,
    tokens: Tokens = "",
    batch: Batch = "",
    keys: Keys = "",
    stack: Recipe = "eager",
    repeats: Repeats = 3,
    backend: Backend = "torch",
    budget: Annotated[str, typer.Option(help="Time limit: `5m`; default: none.")] = "",
    plan_only: Annotated[
        Path | None,
        typer.Option(help="Only write the plan (JSON), and the worker script next to it, for another machine."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace an existing plan.")] = False,
    json: AsJson = False,
) -> None:
    """Measure the keys that a database is missing for a set of models, with PyTorch on this machine, most valuable
    first

    etude ops measure llama3-8b qwen3-8b --tp 1,2 --device h200 --db h200.ops --budget 5m
    etude ops measure llama3-8b --device h200 --plan-only plan.json

    Ctrl-C keeps what was measured, and the next call continues. With --plan-only nothing is measured here: copy
    plan.json and plan_worker.py to the machine with the device, run `python plan_worker.py plan.json -o points.csv`
    there (it needs only PyTorch), and `etude ops add points.csv` here.
    """
    from etude.base.units import parse_time

    if not device:
        raise UsageError("no device is named", hint="--device h200; for your own machine any name, such as `my-cpu`")
    budget_s = parse_time(budget) / 1e9 if budget else 0.0
    found = _needs(models, tp, db, device, train, tokens, batch, keys, stack, repeats)
    plan = found.plan(device, backend, budget_s=budget_s)
    if train and not _has_host(db):
        plan["points"].insert(0, {"op": "host", "dtype": "bf16"})
    if plan_only is not None:
        _write_plan(plan, plan_only, force)
        return
    emit(_measured(plan, db, budget_s or 1e9), json=json)


@ops.command()
def show(
    db: Annotated[Path, typer.Argument(help="A database, or a profile folder.", show_default=False)],
    op: Annotated[str, typer.Option(help="Show the points of one operator: `linear`.")] = "",
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """The content of a database: keys and points by device, backend and op; or the points of one op

    etude ops show h200.ops
    etude ops show h200.ops --op linear --csv
    """
    import numpy as np

    from etude.cost.opdb.database import keys_in
    from etude.cost.opdb.schema import OPS
    from etude.steps.operators import open_ops

    found = open_ops(db)
    if op and op not in OPS:
        raise UsageError(f"unknown op `{op}`", hint=f"known: {', '.join(OPS)}")
    if op:
        keep = np.array(found.table["op"].to_pylist(), np.str_) == op
        names = ("device", "backend", "dtype", *OPS[op].fixed, *OPS[op].free, "time_us", "repeat", "source")
        rows = found.table.select(list(names)).filter(keep)
        emit(rows.sort_by([(name, "ascending") for name in names]), json=json, csv=csv, md=md)
        return
    lines = []
    for device in found.devices:
        for backend in found.select(device=device).backends:
            points, time_ns = found.select(device=device, backend=backend).points()
            for name in OPS:
                here = points.op == name
                if here.any():
                    lines.append({
                        "device": device, "backend": backend, "op": name, "keys": len(set(keys_in(points.take(here)))),
                        "points": int(here.sum()), "least us": round(float(time_ns[here].min()) / 1e3, 2),
                        "most us": round(float(time_ns[here].max()) / 1e3, 2), "what": OPS[name].doc,
                    })  # fmt: skip
    emit(lines, json=json, csv=csv, md=md)


@ops.command()
def add(
    points: Annotated[list[Path], typer.Argument(help="CSV files of the worker, or databases.", show_default=False)],
    db: Db = DEFAULT,
    json: AsJson = False,
) -> None:
    """Add measured points to a database; points that it already has are skipped

    etude ops add points.csv --db h200.ops
    """
    from etude.cost.opdb import read_ops, read_points

    tables = [(path, read_points(path) if path.suffix == ".csv" else read_ops(path).table) for path in points]
    _put(db, tables, json)


@ops.command("import")
def import_points(
    path: Annotated[Path, typer.Argument(help="Vidur's CSV, or a profile folder.", show_default=False)],
    db: Db = DEFAULT,
    json: AsJson = False,
) -> None:
    """Import measurements of another tool: Vidur's operators, or a profile folder of a serving simulator

    etude ops import vidur_ops.csv --db vidur.ops
    etude ops import profiles/RTXPRO6000/Qwen/Qwen3-32B/bf16 --db vllm.ops
    """
    from etude.cost.opdb.profiles import VIDUR, is_vidur, read_vidur
    from etude.steps.operators import open_ops

    if path.is_dir():
        table = open_ops(path).table
    elif is_vidur(path):
        table = read_vidur(path)
    elif not path.exists():
        raise UsageError("there is no such file or folder", where=str(path))
    else:
        hint = f"a folder with meta.yaml, or a CSV with {', '.join(VIDUR)}; `etude ops add` reads points of the worker"
        raise UsageError("is not in the format of a known tool", where=str(path), hint=hint)
    _put(db, [(path, table)], json)


@ops.command()
def contend(
    rows: Annotated[
        Path, typer.Argument(help="CSV file: one row for each pair, or for each number of occupied cores.")
    ],
    device: DeviceName = "h200",
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """The slowdown of an operator next to another, or on a device with occupied cores: one prediction per row of a file

    etude ops contend pairs.csv --device h200
    etude ops contend sms_held.csv --device h200 --json

    Columns of pairs: op, background, op_alone_ns, background_alone_ns, and op_flops, op_bytes, background_flops,
    background_bytes; of occupied cores: op, holder, sms_held, op_alone_ns, holder_bytes_per_s_alone. An empty time
    alone is predicted, too. `slowdown`, where the file has it, is shown as measured.
    """
    from etude.cost.contention import predicted_rows
    from etude.machine import open_device

    found = predicted_rows(open_device(device), rows)
    if json:
        emit({"rows": found}, json=True)
        return
    emit(
        [{name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()} for row in found], csv=csv, md=md
    )
    errors = sorted(abs(r["predicted"] / r["measured"] - 1) for r in found if r["measured"] and r["covered"])
    if errors:
        say(f"{len(errors)} measured rows: median error {errors[len(errors) // 2]:.1%}")


for command in (ops_tiers.offload, ops_tiers.graph, ops_tiers.place):
    ops.command()(command)


@ops.command()
def kernels(
    shapes: Annotated[list[str], typer.Argument(help="Shapes of matrix products: `M,N,K`.", show_default=False)],
    kernel: Annotated[list[str] | None, typer.Option(help="`product:w4a16:g128`, `product:lcma:auto`, ...")] = None,
    units: Annotated[str, typer.Option(help="Units of the device: `auto`, a name, or a split: `cpu+sme`.")] = "",
    device: DeviceName = "h200",
    json: AsJson = False,
    csv: AsCsv = False,
    md: AsMarkdown = False,
) -> None:
    """The speed of other kernels for bf16 matrix products, by closed forms at the device's peak rates

    etude ops kernels 1,4096,4096 --kernel product:w4a16:g128 --kernel product:lcma:auto --device h200
    etude ops kernels 256,256,256 1024,1024,1024 --kernel product:array:64,64,64 --device versal-aie16
    etude ops kernels 512,3072,3072 --units auto --device phone-sme

    `GOP/s` counts the operations of the plain product, whichever way it is done.
    """
    from etude.cost.menu import PLAIN, kernel_figures
    from etude.machine import open_device

    found, rows = open_device(device), list[dict[str, Any]]()
    for shape in shapes:
        sizes = _counts("shape", shape)
        if len(sizes) != 3:
            raise UsageError(f"`{shape}` is not M,N,K", hint="1,4096,4096")
        mine = [kernel_figures(found, *sizes, name, units) for name in dict.fromkeys((PLAIN, *(kernel or ())))]
        rows += [one | {"speedup": mine[0]["time_ns"] / one["time_ns"]} for one in mine]
    emit({"rows": rows} if json else [_kernel_row(row) for row in rows], json=json, csv=csv, md=md)


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


def _put(db: Path, tables: list[tuple[Path, Any]], json: bool) -> None:
    import pyarrow as pa

    from etude.cost.opdb import add_rows

    where = ", ".join(str(path) for path, _ in tables)
    added, rows = add_rows(db, pa.concat_tables([table for _, table in tables]), where=where)
    say(f"{db}: {added:,} rows added, {rows:,} in total")
    if json:
        emit({"added": added, "rows": rows}, json=True)


# -- needs -------------------------------------------------------------------------------------------------------------


def _needs(
    models: list[str], tp: str, db: Path, device: str, train: bool, tokens: str, batch: str, keys: str, stack: str,
    repeats: int,
) -> "Needs":  # fmt: skip
    from etude.make.generate.model import open_model
    from etude.steps.operators import Workload, needs_of, open_ops

    base = Workload(train=train, stack=stack, **({"batch": (1,)} if train else {}))
    given = {"tokens": tokens, "batch": batch, "keys": keys}
    sizes: dict[str, Any] = {name: _counts(name, text) for name, text in given.items() if text}
    workload = replace(base, **sizes)
    database = open_ops(db) if db.exists() else None
    return needs_of(
        [open_model(name) for name in models], _counts("tp", tp), workload, _system(device),
        database=database.select(device=device) if database else None, repeats=repeats,
    )  # fmt: skip


def _counts(name: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"--{name}: `{text}` is not a list of positive numbers", hint="1,2,4")
    return tuple(int(part) for part in parts)


def _system(device: str) -> "System":
    """A system with this device. A device that is not in the catalogue has only its name."""
    from etude.machine import Device, device_names, open_device, open_system

    found = open_device(device) if device in device_names() else Device(name=device)
    return open_system("dgx-h200").replace(device=found)


def _has_host(db: Path) -> bool:
    from etude.steps.operators import open_ops

    return db.exists() and open_ops(db).host_ns() is not None


# -- measuring ---------------------------------------------------------------------------------------------------------


def _write_plan(plan: dict[str, Any], path: Path, force: bool) -> None:
    from importlib.resources import files

    import msgspec

    from etude.base.files import writing

    worker = path.with_name(f"{path.stem}_worker.py")
    with writing(worker, force=True) as temporary:
        temporary.write_text(files("etude.cost.opdb").joinpath("worker.py").read_text("utf-8"), "utf-8")
    with writing(path, force=force) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1))
    say(f"wrote {path} with {len(plan['points']):,} points, and {worker}")
    say(f"there run python {worker.name} {path.name} -o points.csv; then here: etude ops add points.csv --db FILE")


def _measured(plan: dict[str, Any], db: Path, budget_s: float) -> dict[str, Any]:
    """Measures the points of a plan and writes them to the database. After an interruption, the points measured so far
    are still written."""
    from etude.cost.opdb import add_rows, worker
    from etude.cost.opdb.profiles import numbers_of

    _check_machine(plan["device"])
    waiting: list[dict[str, Any]] = []
    count = left_out = 0
    try:
        with progress("measuring", len(plan["points"])) as advance:
            for point, times in worker.rows_of(plan, budget_s=budget_s, done=set()):
                waiting += worker.written(plan, point, times)
                count, left_out = count + bool(times), left_out + (not times)
                advance(1, point["op"])
                if count % FLUSH == 0 and waiting:
                    add_rows(db, numbers_of(waiting))
                    waiting = []
    except KeyboardInterrupt:
        say("interrupted: measured points are kept")
    if waiting:
        add_rows(db, numbers_of(waiting))
    left = len(plan["points"]) - count - left_out
    say(f"{db}: {count:,} points measured, {left_out:,} not measurable, {left:,} left")
    return {"measured": count, "left_out": left_out, "left": left}


def _check_machine(device: str) -> None:
    """Raises UsageError without PyTorch, or if a device of the catalogue is to be measured on another one."""
    from etude.machine import device_names

    try:
        import torch
    except ImportError:
        raise UsageError(
            "measuring needs PyTorch", hint="pip install 'etude[torch]', or --plan-only plan.json"
        ) from None
    here = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    bare = "".join(c for c in here.lower() if c.isalnum())
    if device in device_names() and device.replace("-", "") not in bare:
        raise UsageError(
            f"points of `{device}` cannot be measured here: this machine has {here}",
            hint="--plan-only plan.json for that machine, or --device with a name for this one",
        )
