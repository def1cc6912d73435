"""`etude calibrate engine`: the stack of an engine from a result of its benchmark client, or from rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part
from etude.base.files import csv_rows, writing
from etude.base.outputs import OutputPlace, Printed
from etude.base.parameters import given_in, is_given, request_of, spelled, whole
from etude.base.talk import progress, say
from etude.machine import open_system
from etude.world.serve.asked.service import Replicas, check_stages, model_named
from etude.world.serve.deployment import device_name
from etude.world.serve.engine import Engine
from etude.world.serve.measured.calibration import CalibratedEngine, bench_stream, calibrate_bench, calibrate_rows
from etude.world.serve.measured.published import COLUMNS
from etude.world.serve.pools import Between, pools_of
from etude.world.serve.requests import Requests
from etude.world.serve.serving import Served
from etude.world.serve.stacks import OwnErrors, ServingStack, serving_stack, stack_file

PANEL, SERVER = "What was measured", "The server"


@dataclass(frozen=True, kw_only=True)
class CalibrateEngine:
    """The stack of an engine as it is on your machines, from one result of its benchmark client or a few rows

    etude calibrate engine result.json llama3-8b --system dgx-h100 -o mine.yaml
    etude calibrate engine sglang.json qwen3-8b --system dgx-h100 --stack sglang --users 16 -o mine.yaml
    etude calibrate engine rows.csv --system dgx-h100 --stack vllm-0.12 -o mine.yaml

    A result is that of `vllm bench serve --save-result --save-detailed` or `sglang.bench_serving --output-details`, of
    a server with the flags that are given here; rows have the columns of `etude score`. Two factors on the device's
    work and the engine's own time for a pass and a sequence are fitted to one half, and what is left is that of the
    other. `etude serve ... --stack mine.yaml` uses the stack.
    """

    path: str = argument("path", "result of a benchmark client, or CSV file of served rows", like="other.json")
    model: str = argument("noun", "the model that was served, with a result", "", of=str, like="gpt2")
    system: str = figure(
        "noun",
        "where it was measured; the fit simulates it there",
        "",
        of=str,
        names=("-s",),
        like="dgx-h200",
        panel=SERVER,
    )
    stack: str = figure(
        "text", "stack to start from: vllm, vllm-0.12, sglang, ..., or a file", "vllm", like="sglang", panel=SERVER
    )
    tp: int = figure("count", "tensor-parallel ranks of a replica", 1, panel=SERVER)
    pp: int = figure("count", "stages of layers of a replica, each on --tp ranks", 1, panel=SERVER)
    ep: int = figure("count", "ranks of a replica over which experts are spread", 1, panel=SERVER)
    precision: str = figure("text", "data type of weights and products", "bf16", like="fp8", panel=SERVER)
    kv_dtype: str = figure("text", "data type of keys and values", "", like="fp8", panel=SERVER)
    replicas: int = figure("count", "copies of the model, each with its own engine", 1, panel=SERVER)
    engine: Engine = part(Engine, "The engine")
    out: str = figure("out", "YAML file of the stack", names=("-o",), like="new-stack.yaml")
    users: int = figure(
        "count",
        "requests at once of a client that does not say when it sent them; 0: the file says",
        0,
        zero=True,
        panel=PANEL,
    )
    force: bool = figure("switch", "replace what is there", False, names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCalibration:
    path: Path
    base: ServingStack
    base_name: str
    device: str
    place: OutputPlace
    replicas: Replicas | None
    """None: rows say what they ran on."""
    system: str
    users: int


def calibration_inputs(asked: CalibrateEngine) -> EngineCalibration:
    path, place = Path(asked.path), OutputPlace.of(asked)
    if place is None or place.path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{spelled(asked, 'out')}: `{asked.out}` is not the name of a YAML file", hint="mine.yaml")
    if not asked.system:
        raise UsageError("no system is given", hint="--system dgx-h100, where it was measured")
    device = device_name(open_system(asked.system))
    if not device:
        raise UsageError("a stack is of a device of the catalogue", where=asked.system, hint="--system dgx-h100")
    base = serving_stack(asked.stack, device)
    rows = path.suffix.lower() == ".csv"
    replicas = None if rows else _replicas(asked)
    if rows:
        _only_rows(asked)
    return EngineCalibration(
        path=path,
        base=base,
        base_name=asked.stack,
        device=device,
        place=place,
        replicas=replicas,
        system=asked.system,
        users=0 if rows else asked.users,
    )


def _replicas(asked: CalibrateEngine) -> Replicas:
    if not asked.model:
        hint = "etude calibrate engine result.json llama3-8b --system dgx-h100, and the engine's flags"
        raise UsageError("a result does not say which model was served", where=f"PATH: {asked.path}", hint=hint)
    engine, between = whole(asked.engine), Between()
    pools = tuple(pools_of(between, replicas=asked.replicas, tp=asked.tp, ep=asked.ep, pp=asked.pp))
    check_stages(pools, engine, between, offload=False)
    costs = {"precision": asked.precision, "stack": asked.stack, "ops": None, "kv_dtype": asked.kv_dtype}
    return Replicas(
        model=asked.model,
        system=asked.system,
        pools=pools,
        costs=costs,
        engine=engine,
        between=between,
        limits={"": {}},
    )


def _only_rows(asked: CalibrateEngine) -> None:
    """Rows say all but the system, which may override theirs."""
    known = {"path", "out", "system", "stack", "force", *given_in(asked.output)}
    more = [name for name in request_of(asked).given if name not in known and is_given(asked, name)]
    if more:
        raise UsageError(f"{spelled(asked, more[0])} is not read with rows, which say it", hint="leave it out")


def run_calibration(given: EngineCalibration) -> CalibratedEngine:
    found = _calibrated(given)
    for line in found.refused:
        say(line)
    with writing(given.place.path, force=given.place.force) as temporary:
        temporary.write_text(stack_file({given.device: found.stack}, _own_errors(given, found)), "utf-8")
    say(f"wrote {given.place.path}")
    return found


def _own_errors(given: EngineCalibration, found: CalibratedEngine) -> OwnErrors | None:
    if given.replicas is None:
        return found.own_errors("of its own rows, held out")
    first, precision = given.replicas.pools[0], str(given.replicas.costs["precision"])
    return found.own_errors(
        "requests of its own run, held out",
        model=model_named(given.replicas.model).name,
        precision=precision,
        ranks=first.gpus // first.count,
    )


def _calibrated(given: EngineCalibration) -> CalibratedEngine:
    said = f"etude calibrate engine {given.path.name}, over {given.base_name}"
    if given.replicas is None:
        columns, rows = csv_rows(given.path)
        if missing := [name for name in COLUMNS if name not in columns]:
            raise UsageError(f"no column `{missing[0]}`", where=str(given.path), hint="the columns of etude score")
        with progress("predicting rows", len(rows)) as advance:
            return calibrate_rows(given.base, rows, given.system, said, advance)
    stream, measured = bench_stream(given.path, given.users)
    replicas = given.replicas

    def serve(stack: ServingStack) -> Served:
        return served_by(replicas, stack, stream)

    return calibrate_bench(given.base, measured, serve, said)


def served_by(replicas: Replicas, stack: ServingStack, stream: Requests) -> Served:
    return replace(replicas, costs={**replicas.costs, "stack": stack}).open().serve(stream)


# -- for a reader ------------------------------------------------------------------------------------------------------


def calibration_record(found: CalibratedEngine) -> dict[str, Any]:
    return {
        "constants": found.constants,
        "fitted": found.fitted,
        "held_out": found.held_out,
        "before": found.before,
        "after": found.after,
        "worse": list(found.worse),
    }


def calibration_rows(found: CalibratedEngine) -> list[dict[str, Any]]:
    return [
        {"": name, "error before": _text(found.before[name]), "error after": _text(its)}
        for name, its in found.after.items()
    ]


def calibration_text(found: CalibratedEngine) -> Iterator[Any]:
    yield calibration_rows(found)
    for line in calibration_lines(found):
        say(line)


def _text(its: dict[str, float]) -> str:
    return f"{its['p50']:.1%}, 9 of 10 below {its['p90']:.1%}, {its['bias']:+.1%}"


def calibration_lines(found: CalibratedEngine) -> list[str]:
    its = found.constants
    of = f"errors are of the {found.held_out:,} held out" if found.held_out else "nothing is held out of so few"
    lines = [
        f"work bound by memory x{its['memory']:.3g}, by matrix units x{its['compute']:.3g}; the engine's own "
        f"{its['pass_ns'] / 1e3:,.0f} us for a pass, {its['sequence_ns'] / 1e3:,.1f} us for a sequence",
        f"fitted to {found.fitted:,}; {of}",
    ]
    lines += [f"note: {name} is farther off than with the stack that it started from" for name in found.worse]
    return lines
