"""Energy of a run, of a model that is predicted, or of measured rows."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.cli.app import RUN, app
from etude.surface.cli.output import AsJson, emit, say
from etude.surface.cli.plan_flags import model_of, plan_of, with_plan
from etude.surface.cli.runs import RanOn, TimesFile, find_run, grown, no_times
from etude.surface.cli.serving import Asked, Draft, Requests, Serve, refuse, served, with_serving
from etude.surface.cli.simulation import Kernels, Units

if TYPE_CHECKING:
    from etude.analyse.energy import Energy, PowerCurve
    from etude.analyse.gaps import LongRun
    from etude.machine.system import Device, System
    from etude.model.run import Run

EXAMPLE = """Power over time and energy of a run, or of a predicted model: J, kWh, carbon, price

[bold]Example[/bold]

  etude energy run/ --ran-on h200
  etude energy llama3-8b --gpus 64 --zero 3 --system dgx-h100 --region sweden
  etude energy qwen3-8b --serve --prefill 2048 --decode 256 --batch 16 --system dgx-h200 --clock 1200MHz
  etude energy llama3-70b --gpus 512 --tp 8 --pp 4 --system dgx-h100 --smooth floor:0.8 --timeline p.parquet
  etude energy llama3.2-3b --serve --prefill 2048 --decode 64 --system xdna2 --kernel product:w4a16:g128
  etude energy llama3-70b --gpus 512 --tp 8 --pp 4 --system dgx-h100 --repeat 500 --gaps "checkpoint=every:5min,for:20s"
  etude energy --rows measured.csv

`--clock` and `--cap` were compared with measurements of an H200; other devices were not measured, and the output
says so.
"""

Target = Annotated[str, typer.Argument(help="A run (any job with times), or a model as `etude predict` takes it.")]


@app.command(rich_help_panel=RUN, help=EXAMPLE)
@with_serving
@with_plan
def energy(
    flags: dict[str, Any],
    serving: dict[str, Any],
    target: Target = "",
    system: Annotated[
        str, typer.Option("--system", "-s", help="Simulate there: a name of `etude systems`, or a file.")
    ] = "",
    ran_on: RanOn = "",
    clock: Annotated[str, typer.Option(help="Clock of the devices: `1200MHz`, or `0.8` of the nominal one.")] = "",
    cap: Annotated[
        str, typer.Option(help="Power cap of a device, `500W`: the highest clock that keeps to it is taken.")
    ] = "",
    region: Annotated[str, typer.Option(help="Where it runs, for carbon and price: `sweden`, `usa`, ...")] = "",
    regions: Annotated[Path | None, typer.Option(help="CSV file of regions: region, impact, price, pue.")] = None,
    smooth: Annotated[str, typer.Option(help="`floor:0.8` of the peak, `battery:2MJ`, `stagger:4` jobs.")] = "",
    repeat: Annotated[int, typer.Option(min=1, help="Repeat the step, or the run, this many times.")] = 1,
    gaps: Annotated[
        str, typer.Option(help="`checkpoint=every:60s,for:5s;failure=mtbf:3h,for:10min`: the devices idle then.")
    ] = "",
    timeline: Annotated[Path | None, typer.Option(help="Parquet file to write: time_ns, watts of all devices.")] = None,
    every: Annotated[
        str, typer.Option(help="Length of the windows of the timeline, `1ms`; default: a row for each change.")
    ] = "",
    rows: Annotated[Path | None, typer.Option(help="CSV file of measured power: predict each of its rows.")] = None,
    timing: TimesFile = None,
    plan: Annotated[Path | None, typer.Option(help="YAML file with the plan; flags override it.")] = None,
    stack: Annotated[str, typer.Option(help="Software stack: a name that `etude stacks` lists, or a YAML file.")] = "",
    kernel: Kernels = None,
    units: Units = "",
    memory_check: Annotated[bool, typer.Option(help="Refuse plans that do not fit the memory of the device.")] = True,
    serve: Serve = False,
    requests: Requests = None,
    draft: Draft = "",
    force: Annotated[bool, typer.Option("--force", help="Replace an existing timeline.")] = False,
    json: AsJson = False,
) -> int:
    if rows is not None:
        return _rows(rows, system, json=json)
    if not target:
        raise UsageError("neither a run nor a model is given", hint="etude energy run/ --ran-on h200")
    if every and timeline is None:
        raise UsageError("--every applies only with --timeline", hint="--timeline power.parquet")
    if regions is not None and not region:
        raise UsageError("--regions gives a table, but no region of it is chosen", hint="--region NAME")
    if serve and (gaps or repeat > 1):
        raise UsageError("--gaps and --repeat apply only to training", hint="leave out --serve")
    if clock and cap:
        raise UsageError("a cap chooses the clock", hint="give only one of --clock and --cap")
    chosen = {"kernels": tuple(kernel or ()), "units": units}
    if (clock or cap) and any(chosen.values()):
        raise UsageError(
            "--clock and --cap cannot be combined with --kernel and --units", hint="leave out --kernel and --units"
        )
    seed = 0 if serve else serving.pop("seed", 0)
    if _is_run(Path(target)):
        if any(chosen.values()):
            raise UsageError("--kernel and --units apply only to a model", hint=f"{target} is a run")
        given = [f"--{name.replace('_', '-')}" for name in (*flags, *serving)]
        if given or serve or stack or plan:
            raise UsageError(
                f"{(given or ['--serve, --stack or --plan'])[0]} applies only to a model, and {target} is a run"
            )
        made = _of_run(Path(target), system, ran_on, timing, again=bool(clock or cap))
    elif serve:
        asked = Asked(target, None, flags, serving, plan, requests, draft, system, memory="", name="")
        made = _of_serving(asked, check=memory_check, **chosen)
    else:
        refuse(serving, requests, draft)
        made = _of_step(target, flags, plan, system, stack, check=memory_check, **chosen)
    long = _long(repeat, gaps, seed)
    found = _figures(made, long, clock, cap, region, regions, smooth, timeline, every, force=force)
    emit(_shown(found, json), json=json)
    return 0


def _is_run(path: Path) -> bool:
    """Whether the path is a run rather than the file of a model, which `etude predict` takes."""
    return path.exists() and path.suffix not in (".yaml", ".yml") and path.name != "config.json"


class Made:
    """A run that can be had at any clock, and what it is of."""

    def __init__(
        self, at: "Callable[[float], Energy]", device: "Device", system: "System | None", *, mixed: bool, **about: int
    ) -> None:
        self.at, self.device, self.system, self.mixed, self.about = at, device, system, mixed, about

    def kinds(self, ranks: int) -> "list[tuple[Device, int]]":
        """The devices that this many ranks run on, and how many of each."""
        if not self.mixed or self.system is None:
            return [(self.device, ranks)]
        count = Counter(self.system.kind_of(range(ranks)).tolist())
        return [(self.system.all_kinds[kind], n) for kind, n in sorted(count.items())]


def _system(name: str) -> "System":
    from etude.machine import open_system

    if not name:
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    return open_system(name)


def _of_run(path: Path, system: str, device: str, timing: Path | None, *, again: bool) -> Made:
    """A run as recorded. Without times, or with `again`, as simulated on the system; at another clock, with
    its recorded compute slowed."""
    from etude.analyse.energy import energy as analyse
    from etude.analyse.steps import step_times
    from etude.machine import device_names, open_device
    from etude.run.simulate import simulate
    from etude.steps.energy import slowed
    from etude.tell.report import device_of

    if device and device not in device_names():  # a system, which may have devices of several kinds
        system, device = system or device, ""
    job, run = find_run(path, None, 0, "", timing)
    name = system or (run.card.hardware.system if run is not None and run.card is not None else "")
    on = grown(_system(name), name, job.world_size) if name and (run is None or again or not device) else None
    if run is None and on is None:
        raise no_times(path)
    own = open_device(device) if device else on.device if on is not None else device_of(job)
    if own is None:
        raise UsageError("the devices of the run are not known", where=str(path), hint="--ran-on h200")
    if again and on is None:
        raise UsageError("another clock needs a system to simulate on", hint="--system dgx-h200")
    simulated, mixed = run is None or again, not device and on is not None and bool(on.devices)
    if simulated and on is not None:
        say(f"note: times are from a simulation on {on.name}")

    def at(ratio: float) -> "Energy":
        if not simulated or on is None:
            return analyse(found, device=own)
        run = found if ratio == 1.0 else simulate(slowed(job, own, ratio), on)
        return analyse(run, device=None if mixed else own, ratio=ratio)

    found: Run = run if run is not None and not simulated else simulate(job, on)  # type: ignore[arg-type]
    table = step_times(found)
    steps = len(set(table["step"].to_pylist())) if "step" in table.schema.names else 0
    return Made(at, own, on, mixed=mixed, steps=steps)


def _of_serving(asked: Asked, *, check: bool, **chosen: Any) -> Made:
    from etude.analyse.energy import energy as analyse
    from etude.cost.choice import Menu
    from etude.run.simulate import simulate
    from etude.steps import predict_serving
    from etude.steps.energy import slowed

    menu = Menu.of(**chosen)
    job, on = served(asked, check=check, weights=menu.weights), _system(asked.system)
    first = predict_serving(job, on, **chosen).simulated
    machine = first.system or on

    def at(ratio: float) -> "Energy":
        run = first if ratio == 1.0 else simulate(slowed(job.job, on.device, ratio), machine)
        return analyse(run, device=None if on.devices else on.device, ratio=ratio, menu=menu)

    tokens = sum(r.output for r in job.requests)
    return Made(at, on.device, on, mixed=bool(on.devices), tokens=tokens, requests=len(job.requests))


def _of_step(
    name: str, flags: dict[str, Any], path: Path | None, system: str, stack: str, *, check: bool, **chosen: Any
) -> Made:
    from etude.analyse.energy import energy as analyse
    from etude.cost.choice import Menu
    from etude.cost.stacks import open_stack
    from etude.steps import predict
    from etude.steps.energy import step_at

    on = _system(system)
    plan, menu = plan_of(flags, path, name), Menu.of(**chosen)
    first = predict(model_of(name), plan, on, stack=open_stack(stack or "default"), check=check, **chosen)
    between = first.time_ns - first.simulated.makespan_ns

    def at(ratio: float) -> "Energy":
        run = step_at(first, ratio)
        own = None if on.devices else on.device
        return analyse(run, device=own, ratio=ratio, end_ns=run.makespan_ns + between, menu=menu)

    about = {"steps": first.generated.plan.steps, "tokens": first.generated.tokens}
    return Made(at, on.device, on, mixed=bool(on.devices), **about)


def _long(repeat: int, gaps: str, seed: int) -> "Callable[[Energy], LongRun] | None":
    """A function that repeats a run, with gaps; None if it is taken once, as it is."""
    from etude.analyse.gaps import Gaps, long_run

    if repeat == 1 and not gaps:
        return None
    given = Gaps.parse(gaps, seed=seed)
    return lambda found: long_run(found, given, repeat=repeat)


def _figures(
    made: Made,
    long: "Callable[[Energy], LongRun] | None",
    clock: str,
    cap: str,
    region: str,
    regions: Path | None,
    smooth: str,
    timeline: Path | None,
    every: str,
    *,
    force: bool,
) -> dict[str, Any]:
    from etude.machine.regions import open_region
    from etude.steps.energy import energy_figures, ratio_of, under_cap

    if (clock or cap) and made.mixed:
        raise UsageError("--clock and --cap need a system with one kind of device, and this one has several")
    extra: dict[str, Any] = {}
    known = made.device.energy is not None and made.device.energy.measured_clocks
    place = open_region(region, regions) if region else None
    if cap:
        capped = under_cap(made.at, _watts(cap), made.device)
        found, ratio = capped.energy, capped.ratio
        extra = {"clock": ratio, "cap_met": capped.met, "validated": known}
        if not capped.met:
            say(f"note: at the lowest clock a device still draws {found.highest_w:.0f} W, more than the cap")
    else:
        ratio = ratio_of(clock, made.device) if clock else 1.0
        found = made.at(ratio)
        extra = {"clock": ratio, "validated": known} if clock else {}
    if extra and not known:
        say(f"note: no measurement of `{made.device.name}` at another clock or under a cap was available")
    about, happened = made.about, {"repeat": 1, "checkpoints": 0, "failures": 0, "lost_ns": 0}
    if long is not None:
        whole = long(found)
        found = replace(found, curve=whole.curve, by_class=whole.by_class)
        about = {name: count * whole.repeat for name, count in about.items()}
        happened = {name: getattr(whole, name) for name in happened}
    curve = _smoothed(found.curve, smooth)
    if timeline is not None:
        _write(curve, timeline, every, force=force)
    figures = energy_figures(found, curve=curve, region=place, kinds=made.kinds(found.ranks), **about)
    for note in figures["assumed"]:
        say(f"note: {note}")
    return figures | happened | extra


def _watts(text: str) -> float:
    try:
        return float(text.strip().lower().removesuffix("w"))
    except ValueError:
        raise UsageError(f"--cap: `{text}` is not a power", hint="500W") from None


def _smoothed(curve: "PowerCurve", how: str) -> "PowerCurve":
    from etude.analyse.energy import with_battery, with_floor, with_stagger

    name, _, value = how.partition(":")
    if name in ("", "none"):
        return curve
    scale = {"kj": 1e3, "mj": 1e6, "gj": 1e9, "kwh": 3.6e6, "j": 1.0}
    unit = next((u for u in scale if value.lower().endswith(u)), "")
    try:
        number = float(value.lower().removesuffix(unit)) * scale.get(unit, 1.0)
    except ValueError:
        number = -1.0
    if name == "floor" and 0 <= number <= 1 and not unit:
        return with_floor(curve, number * curve.peak_w)
    if name == "battery" and number >= 0:
        return with_battery(curve, number, efficiency=0.9)
    if name == "stagger" and number >= 1 and number == int(number) and not unit:
        return with_stagger(curve, int(number))
    raise UsageError(f"--smooth: unknown method `{how}`", hint="floor:0.8, battery:2MJ, stagger:4")


def _write(curve: "PowerCurve", path: Path, every: str, *, force: bool) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from etude.base.files import writing
    from etude.base.units import parse_time

    shown = curve.sampled(round(parse_time(every))) if every else curve
    watts = np.append(shown.watts, shown.watts[-1:])  # the last row is the end
    with writing(path, force=force) as place:
        pq.write_table(pa.table({"time_ns": shown.time_ns[: len(watts)], "watts": watts}), place)
    say(f"wrote {path}: {len(watts):,} rows")


def _shown(figures: dict[str, Any], json: bool) -> dict[str, Any]:
    """All figures for JSON; otherwise the most important ones, formatted."""
    if json:
        return figures
    from etude.base.units import format_time

    total = figures["energy_j"] or 1.0
    rows = {
        "energy": f"{figures['energy_j']:.4g} J, {figures['kwh']:.4g} kWh of the site",
        "power": f"{figures['mean_w']:.4g} W on average, {figures['peak_w']:.4g} W at most",
        "per device": f"{figures['device_mean_w']:.4g} W on average",
        "time": format_time(figures["time_ns"]),
        "consumed by": ", ".join(
            f"{name} {joules / total:.0%}" for name, joules in list(figures["by_class"].items())[:5]
        ),
        "swing": f"{figures['swing_w']:.4g} W",
    }
    names = {"per_step_j": "J per step", "per_token_j": "J per token", "per_request_j": "J per request"}
    names |= {"carbon_g": "g of CO2", "cost": "electricity cost in dollars", "device_cost": "device cost in dollars"}
    rows |= {"available": _available(figures)} if figures["available"] < 1 else {}
    names |= {name: name for name in ("checkpoints", "failures") if figures[name]}
    names |= {"clock": "clock relative to nominal", "cap_met": "within the cap"}
    return rows | {shown: figures[key] for key, shown in names.items() if figures.get(key) is not None}


def _available(figures: dict[str, Any]) -> str:
    from etude.base.units import format_time

    if not figures["expected_time_ns"]:
        return "never all at the same time"
    return (
        f"{figures['available']:.1%} of the hours: {format_time(figures['expected_time_ns'])} with those they are not"
    )


def _rows(path: Path, system: str, *, json: bool) -> int:
    """Prints each row of a file, measured and predicted. Returns the exit code."""
    if _of_engines(path):
        from etude.world.serve.measured import power_rows

        if system:
            raise UsageError("--system applies only to rows of an energy counter: these rows name their GPUs")
        found = power_rows(path)
    else:
        from etude.steps.energy import energy_rows

        found = energy_rows(path, system=system)
    if json:
        emit({"rows": found}, json=True)
        return 0
    emit([_row(record) for record in found])
    done = [r for r in found if "predicted" in r and r["measured"].get("mean_w")]
    errors = sorted(abs(r["predicted"]["mean_w"] / r["measured"]["mean_w"] - 1) for r in done)
    if errors:
        say(f"{len(done)} rows predicted, {len(found) - len(done)} rejected or without a measurement; "
            f"error of the power {errors[len(errors) // 2]:.1%} at the median")  # fmt: skip
    return 0


def _of_engines(path: Path) -> bool:
    """Whether the rows are from engines that serve models. False if the file cannot be read: its reader reports
    that."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return "avg_batch_size" in file.readline()
    except OSError:
        return False


def _row(record: dict[str, Any]) -> dict[str, Any]:
    if "refused" in record:
        return {"row": record["row"], "name": record["name"], "measured W": None, "predicted W": None,
                "error": record["refused"]}  # fmt: skip
    measured, power = record["measured"].get("mean_w"), record["predicted"]["mean_w"]
    error = f"{power / measured - 1:+.1%}" if measured else None
    return {"row": record["row"], "name": record["name"], "measured W": measured, "predicted W": round(power, 1),
            "error": error}  # fmt: skip
