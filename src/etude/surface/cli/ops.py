from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part
from etude.base.outputs import Place, Printed, Tabled
from etude.base.parameters import is_given, spelled
from etude.base.talk import progress, say
from etude.surface.cli import ops_tiers
from etude.surface.cli.ops_tiers import rows_record
from etude.surface.cli.output import emit
from etude.surface.verb import Verb

if TYPE_CHECKING:
    import pyarrow as pa

    from etude.machine import Device, System
    from etude.make.generate.model import Model
    from etude.steps.operators import Needs, Workload

FLUSH = 64
"""Points after which the file is written."""
ASKED = "What is asked for"


@dataclass(frozen=True, kw_only=True)
class Database:
    """The parameter of what reads or writes a database."""

    db: str = figure("path", "file of the database", "operators.ops", panel="Input")


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """The parameter of what is about one device."""

    device: str = figure(
        "text", "device: a name in the catalogue, or your own", "h200", names=("-d",), metavar="NAME", like="h100"
    )


@dataclass(frozen=True, kw_only=True)
class KeysInput(Database):
    """Parameters of the keys of a set of models."""

    models: tuple[str, ...] = argument(
        "paths", "models: names, Hugging Face ids, YAML files, `config.json`", metavar="MODEL...", like="gpt2"
    )
    tp: tuple[int, ...] = figure("list", "tensor-parallel sizes: `1,2,4`", (1,), of=int, like="1,2", panel=ASKED)
    train: bool = figure("switch", "keys of training steps instead of serving", False, panel=ASKED)
    tokens: tuple[int, ...] = figure(
        "list", "tokens per prompt or sample; default: `128,512,2048,8192`", (), of=int, like="256", panel=ASKED
    )
    batch: tuple[int, ...] = figure(
        "list", "decoding sequences, or samples of a micro-batch; default: `1,4,16,64,256`, or 1 for training", (),
        of=int, like="2", panel=ASKED,
    )  # fmt: skip
    keys: tuple[int, ...] = figure(
        "list", "context length of each decoding sequence; default: `512,2048,8192`", (), of=int, like="1024",
        panel=ASKED,
    )  # fmt: skip
    stack: str = figure(
        "text", "software stack whose recipe training follows", "eager", needs="train", like="nemo", metavar="NAME"
    )
    repeats: int = figure("count", "how often each point is measured", 3, least=1, most=100, panel=ASKED)


@dataclass(frozen=True, slots=True)
class KeysWanted:
    models: "tuple[Model, ...]"
    tp: tuple[int, ...]
    workload: "Workload"
    db: Path
    device: str
    repeats: int

    @classmethod
    def of(cls, asked: KeysInput, device: str) -> "KeysWanted":
        from etude.make.generate.model import open_model
        from etude.steps.operators import Workload

        base = Workload(train=True, stack=asked.stack, batch=(1,)) if asked.train else Workload()
        names = ("tokens", "batch") if asked.train else ("tokens", "batch", "keys")
        sizes: dict[str, Any] = {name: _positive(asked, name) for name in names if is_given(asked, name)}
        models = tuple(open_model(name) for name in asked.models)
        return cls(models, _positive(asked, "tp"), replace(base, **sizes), Path(asked.db), device, asked.repeats)

    def needs(self) -> "Needs":
        from etude.steps.operators import needs_of, open_ops

        database = open_ops(self.db) if self.db.exists() else None
        return needs_of(
            self.models, self.tp, self.workload, _system(self.device),
            database=database.select(device=self.device) if database else None, repeats=self.repeats,
        )  # fmt: skip


def _positive(asked: Any, name: str) -> tuple[int, ...]:
    found: tuple[int, ...] = getattr(asked, name)
    if not all(one > 0 for one in found):
        raise UsageError(f"{spelled(asked, name)}: 0 is not a positive number", hint="1,2,4")
    return found


def _system(device: str) -> "System":
    """A system with this device. A device that is not in the catalogue has only its name."""
    from etude.machine import Device, device_names, open_device, open_system

    found = open_device(device) if device in device_names() else Device(name=device)
    return open_system("dgx-h200").replace(device=found)


@dataclass(frozen=True, kw_only=True)
class Missing(KeysInput, OnDevice):
    """The keys that a database is missing for a set of models, and the time to measure them

    etude ops missing llama3-8b qwen3-8b --tp 1,2,4 --db h200.ops
    etude ops missing llama3-8b --train

    Models that share dimensions share keys: `saved` is the fraction of keys saved by this. A missing file counts as an
    empty database.
    """

    output: Printed = part(Printed)


def show_missing(found: "Needs") -> None:
    numbers = found.summary()
    emit(found.by_op())
    say(f"{numbers['keys']:,} keys of {len(found.uses)} models and splits, {numbers['distinct']:,} distinct: "
        f"{numbers['saved_fraction']:.1%} saved")  # fmt: skip
    say(f"{numbers['missing']:,} keys and {numbers['points_missing']:,} of {numbers['points']:,} points are missing; "
        f"measuring them takes about {numbers['cost_s']:,.0f} s")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Measure(KeysInput):
    """Measure the keys that a database is missing for a set of models, with PyTorch on this machine

    etude ops measure llama3-8b qwen3-8b --tp 1,2 --device h200 --db h200.ops --budget 5min
    etude ops measure llama3-8b --device h200 --plan-only plan.json
    etude ops measure llama3-8b --device my-cpu --train

    The most valuable are first; Ctrl-C keeps what was measured, and the next call continues. With --plan-only nothing
    is measured here: copy plan.json and plan_worker.py to the machine with the device, run `python plan_worker.py
    plan.json -o points.csv` there (it needs only PyTorch), and `etude ops add points.csv` here.
    """

    device: str = figure(
        "text", "device: a name in the catalogue, or your own", names=("-d",), metavar="NAME", like="h100"
    )
    backend: str = figure("text", "name of the backend whose kernels are measured", "torch", like="mine", panel=ASKED)
    budget_ns: int | None = figure("time", "time limit; default: none", None, panel=ASKED)
    plan_only: str | None = figure(
        "out", "only write the plan (JSON), and the worker script next to it, for another machine", None,
        like="measure.json", panel="Output",
    )  # fmt: skip
    force: bool = figure("switch", "replace an existing plan", False, names=("-f",), needs="plan_only")
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class MeasureInputs:
    wanted: KeysWanted
    backend: str
    budget_s: float
    plan: Place | None


def measure_inputs(asked: Measure) -> MeasureInputs:
    budget_s = (asked.budget_ns or 0) / 1e9
    plan = Place.at(asked.plan_only, asked.force)
    return MeasureInputs(KeysWanted.of(asked, asked.device), asked.backend, budget_s, plan)


def measure(given: MeasureInputs) -> dict[str, Any]:
    wanted = given.wanted
    plan = wanted.needs().plan(wanted.device, given.backend, budget_s=given.budget_s)
    if wanted.workload.train and not _has_host(wanted.db):
        plan["points"].insert(0, {"op": "host", "dtype": "bf16"})
    if given.plan is not None:
        return _write_plan(plan, given.plan)
    return _measured(plan, wanted.db, given.budget_s or 1e9)


@dataclass(frozen=True, kw_only=True)
class ShowPoints:
    """The content of a database: keys and points by device, backend and op; or the points of one op

    etude ops show h200.ops
    etude ops show h200.ops --op linear --csv
    """

    db: str = argument("path", "a database, or a profile folder", like="other.ops")
    op: str = figure("text", "show the points of one operator: `linear`", "", like="attention")
    output: Tabled = part(Tabled)


def show_inputs(asked: ShowPoints) -> tuple[Path, str]:
    from etude.cost.opdb.schema import OPS

    if asked.op and asked.op not in OPS:
        raise UsageError(f"{spelled(asked, 'op')}: unknown op `{asked.op}`", hint=f"known: {', '.join(OPS)}")
    return Path(asked.db), asked.op


def shown(given: tuple[Path, str]) -> "pa.Table | list[dict[str, Any]]":
    import numpy as np

    from etude.cost.opdb.database import keys_in
    from etude.cost.opdb.schema import OPS
    from etude.steps.operators import open_ops

    found, op = open_ops(given[0]), given[1]
    if op:
        keep = np.array(found.table["op"].to_pylist(), np.str_) == op
        names = ("device", "backend", "dtype", *OPS[op].fixed, *OPS[op].free, "time_us", "repeat", "source")
        rows = found.table.select(list(names)).filter(keep)
        return rows.sort_by([(name, "ascending") for name in names])
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
    return lines


@dataclass(frozen=True, kw_only=True)
class AddPoints(Database):
    """Add measured points to a database; points that it already has are skipped

    etude ops add points.csv --db h200.ops
    """

    points: tuple[str, ...] = argument("paths", "CSV files of the worker, or databases", like="other.csv")
    output: Printed = part(Printed)


def add(given: tuple[Path, tuple[Path, ...]]) -> dict[str, Any]:
    from etude.cost.opdb import read_ops, read_points

    db, points = given
    return _put(db, [(path, read_points(path) if path.suffix == ".csv" else read_ops(path).table) for path in points])


@dataclass(frozen=True, kw_only=True)
class ImportPoints(Database):
    """Import measurements of another tool: Vidur's operators, or a profile folder of a serving simulator

    etude ops import vidur_ops.csv --db vidur.ops
    etude ops import profiles/RTXPRO6000/Qwen/Qwen3-32B/bf16 --db vllm.ops
    """

    path: str = argument("path", "Vidur's CSV, or a profile folder", like="other.csv")
    output: Printed = part(Printed)


def import_points(given: tuple[Path, Path]) -> dict[str, Any]:
    from etude.cost.opdb.profiles import VIDUR, is_vidur, read_vidur
    from etude.steps.operators import open_ops

    db, path = given
    if path.is_dir():
        table = open_ops(path).table
    elif is_vidur(path):
        table = read_vidur(path)
    elif not path.exists():
        raise UsageError("there is no such file or folder", where=str(path))
    else:
        hint = f"a folder with meta.yaml, or a CSV with {', '.join(VIDUR)}; `etude ops add` reads points of the worker"
        raise UsageError("is not in the format of a known tool", where=str(path), hint=hint)
    return _put(db, [(path, table)])


def _put(db: Path, tables: list[tuple[Path, Any]]) -> dict[str, Any]:
    import pyarrow as pa

    from etude.cost.opdb import add_rows

    where = ", ".join(str(path) for path, _ in tables)
    added, rows = add_rows(db, pa.concat_tables([table for _, table in tables]), where=where)
    say(f"{db}: {added:,} rows added, {rows:,} in total")
    return {"added": added, "rows": rows}


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


def contend(given: "tuple[Device, Path]") -> list[dict[str, Any]]:
    from etude.cost.contention import predicted_rows

    return predicted_rows(*given)


def contend_table(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    errors = sorted(abs(r["predicted"] / r["measured"] - 1) for r in found if r["measured"] and r["covered"])
    if errors:
        say(f"{len(errors)} measured rows: median error {errors[len(errors) // 2]:.1%}")
    return [{name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()} for row in found]


@dataclass(frozen=True, kw_only=True)
class Kernels(OnDevice):
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
    units: str = figure("text", "units of the device: `auto`, a name, or a split: `cpu+sme`", "", like="auto")
    output: Tabled = part(Tabled)


@dataclass(frozen=True, slots=True)
class KernelInputs:
    device: "Device"
    shapes: tuple[tuple[int, int, int], ...]
    kernels: tuple[str, ...]
    units: str


def kernel_inputs(asked: Kernels) -> KernelInputs:
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


def kernels(given: KernelInputs) -> list[dict[str, Any]]:
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


def _has_host(db: Path) -> bool:
    from etude.steps.operators import open_ops

    return db.exists() and open_ops(db).host_ns() is not None


def _write_plan(plan: dict[str, Any], place: Place) -> dict[str, Any]:
    from importlib.resources import files

    import msgspec

    from etude.base.files import writing

    path = place.path
    worker = path.with_name(f"{path.stem}_worker.py")
    with writing(worker, force=True) as temporary:
        temporary.write_text(files("etude.cost.opdb").joinpath("worker.py").read_text("utf-8"), "utf-8")
    with writing(path, force=place.force) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=1))
    say(f"wrote {path} with {len(plan['points']):,} points, and {worker}")
    say(f"there run python {worker.name} {path.name} -o points.csv; then here: etude ops add points.csv --db FILE")
    return {"plan": str(path), "points": len(plan["points"])}


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


def show_measured(found: dict[str, Any]) -> None:
    """What was measured; a plan was said to be written."""
    if "plan" not in found:
        emit(found)


def nothing(found: Any) -> None:
    """All of it was said."""


VERBS = (
    Verb(name="ops missing", asks=Missing, inputs=lambda asked: KeysWanted.of(asked, asked.device),
         run=KeysWanted.needs, record=lambda found: found.summary(), show=show_missing),
    Verb(name="ops measure", asks=Measure, inputs=measure_inputs, run=measure, show=show_measured),
    Verb(name="ops show", asks=ShowPoints, inputs=show_inputs, run=shown),
    Verb(name="ops add", asks=AddPoints, inputs=lambda asked: (Path(asked.db), tuple(map(Path, asked.points))),
         run=add, show=nothing),
    Verb(name="ops import", asks=ImportPoints, inputs=lambda asked: (Path(asked.db), Path(asked.path)),
         run=import_points, show=nothing),
    Verb(name="ops contend", asks=Contend, inputs=contend_inputs, run=contend, record=rows_record,
         table=contend_table),
    *ops_tiers.TIERS,
    Verb(name="ops kernels", asks=Kernels, inputs=kernel_inputs, run=kernels, record=rows_record, table=kernel_table),
)  # fmt: skip
