from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from etude.base.errors import UsageError
from etude.base.figures import part
from etude.base.outputs import Place, Printed, Written
from etude.base.talk import say
from etude.surface.cli import fleet_shown as shown
from etude.surface.cli.output import emit
from etude.surface.verb import Verb
from etude.world.fleet.days import TrainRequest, said_of, train, train_inputs
from etude.world.fleet.experts import ExpertsRequest, experts_inputs, run_experts
from etude.world.fleet.shared import (
    KINDS,
    BackboneRequest,
    FileRequest,
    RadioRequest,
    ServicesRequest,
    ShareRequest,
    kind_of,
)


@dataclass(frozen=True, kw_only=True)
class Train(Written, TrainRequest):
    """Days of a training job on a cluster: faults, checkpoints and recovery

    etude fleet train llama3-405b --gpus 16384 --tp 8 --pp 16 --system dgx-h100 \\
        --days 54 --faults llama3 --checkpoint "local:5min,remote:1h"
    etude fleet train llama3-8b --gpus 512 --tp 8 --system dgx-h100 \\
        --faults "node:mtbf=2000h,repair=4h" --checkpoint remote:auto \\
        --recover spare --spares 4
    etude fleet train llama3-8b --gpus 64 --cp 2 --pp 4 --system dgx-h100 \\
        --faults "slow:at=50s,every=50s,times=32,factor=2,duration=20s" \\
        --checkpoint remote:10min --recover redistribute
    etude fleet train mixtral-8x7b --gpus 64 --tp 2 --ep 8 --zero 1 \\
        --lengths 1024:0.5,4096:0.5 --system dgx-h100 -o fleet/

    A step is predicted once for every state that the plan can be in; the loop over days uses these times. The same
    seed gives the same faults to every policy. `etude report`, `compare` and `query` read the folder of --out.
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class Share(Written, ShareRequest):
    """Jobs, request streams and RL jobs that share the devices of a cluster

    etude fleet share cluster.yaml --jobs jobs.csv --policy las --switch 30s
    etude fleet share pool.yaml --policy harvest
    etude fleet share spot.yaml --jobs jobs.csv
    etude fleet share rl.yaml -o rl/

    A pool is one file: nodes, spot nodes, jobs, request streams and RL jobs.
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class Services(Written, ServicesRequest):
    """Services that take turns on one device, with early exits

    etude fleet services edge.yaml --policy stability
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class Backbone(Written, BackboneRequest):
    """Tasks that share one backbone, its batches and its memory

    etude fleet backbone backbone.yaml --policy shared
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class Radio(Written, RadioRequest):
    """Radio functions and AI services on one set of nodes: shares and moves

    etude fleet radio airan.yaml --policy haf --migrate 2s
    etude fleet radio airan.yaml --load 0.5..1.2
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class Functions(Written, FileRequest):
    """Experts as functions: cold starts, keep-alive, scale to zero

    etude fleet functions moe.yaml
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class Experts(Written, ExpertsRequest):
    """A serving group of experts, of which ranks leave and join again

    etude fleet experts deepseek-v3 --ep 32 --precision fp8 --redundant 32 \\
        --system dgx-h100 --fail rank7@60s --recover shrink --detect 5s \\
        --regroup 5s --replace 30s
    etude fleet experts mixtral-8x7b --gpus 8 --ep 8 --system dgx-h100 \\
        --fail rank1@60s --recover shrink
    etude fleet experts mixtral-8x7b --ep 8 --system dgx-h100 \\
        --fail node0@60s --restart 20s
    etude fleet experts mixtral-8x7b --ep 8 --system dgx-h100

    Every rank has its own sequences; experts are spread over all ranks, some of them as redundant copies.
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True)
class Asked:
    """Inputs of a run, and where its result is written."""

    inputs: Any
    place: Place | None
    asked: Any
    """Provenance, for the folder."""
    price: float = 0.0


def of(build: Callable[[Any], Any]) -> Callable[[Any], Asked]:
    """Inputs of a room, and the place."""
    return lambda asked: Asked(build(asked), Place.of(asked), said_of(asked))


def training(asked: Train) -> Asked:
    return Asked(train_inputs(asked), Place.of(asked), said_of(asked), asked.price)


def radio(asked: Radio) -> Asked:
    given = of(KINDS["radio"][1])(asked)
    if given.place is not None and len(given.inputs.pools) > 1:
        raise UsageError("-o needs a single load", where=str(given.place.path), hint="--load 1.0, without --out")
    return given


def run_training(given: Asked) -> tuple[dict[str, Any], Any]:
    made = train(given.inputs)
    _say(made.notes)
    found, costs, asked = made.fleet, made.costs, given.inputs
    record = found.record(name=given.asked.given["model"], price=given.price) | {"excluded": list(made.excluded)}
    if asked.recover == "replan" and not asked.faults and costs.planned is not None:
        record["plans"] = [{"name": one.name, "step_s": one.step_ns / 1e9} for one in costs.planned()]
    _write(given, found.tables(record), record)
    return record, costs


def run_group(given: Asked) -> dict[str, Any]:
    from etude.world.fleet.experts import group_tables

    _say(filter(None, [given.inputs.model.assumed and f"assumed {given.inputs.model.assumed}"]))
    record = run_experts(given.inputs)
    _write(given, group_tables(record), record)
    return record


def shared(run: Callable[[Any], Any]) -> Callable[[Asked], Any]:
    """Runs what shares devices, says its notes and writes it."""

    def go(given: Asked) -> Any:
        found = run(given.inputs)
        for one in found if isinstance(found, list) else [found]:
            _say(one.notes)
            _write(given, one.tables, one.figures)
        return found

    return go


def _say(notes: Any) -> None:
    for note in notes:
        say(f"note: {note}")


def _write(given: Asked, tables: Any, record: dict[str, Any]) -> None:
    from etude.world.fleet import write_fleet

    if given.place is not None:
        write_fleet(tables, record | {"asked": given.asked.given}, given.place.path, force=given.place.force)
        say(f"wrote {given.place.path}")


def record_of(found: Any) -> Any:
    if isinstance(found, list):
        return [one.figures for one in found] if len(found) > 1 else found[0].figures
    return found.figures | ({"jobs": found.tables["jobs"]} if found.kind == "jobs" else {})


def meant(args: Sequence[str]) -> str | tuple[str, list[str]]:
    """The verb of words without one: by --serve, by --jobs, or by the kind of a file among them."""
    if "--serve" in args:
        return "fleet experts", [word for word in args if word != "--serve"]
    if any(word == "--jobs" or word.startswith("--jobs=") for word in args):
        return "fleet share"
    kind = next(filter(None, (kind_of(word) for word in args)), "")
    is_help = not args or args[0] in ("-h", "--help")
    return f"fleet {kind}" if kind else "" if is_help else "fleet train"


def _sharing(name: str, asks: type[Any], show: Callable[[Any], None]) -> Verb[Any, Any, Any]:
    _, build, run = KINDS[name]
    inputs = radio if name == "radio" else of(build)
    return Verb(name=f"fleet {name}", asks=asks, inputs=inputs, run=shared(run), record=record_of, show=show)


VERBS = (
    Verb(
        name="fleet train", asks=Train, inputs=training, run=run_training, record=lambda found: found[0],
        show=lambda found: emit(shown.training_rows(*found)),
    ),
    _sharing("share", Share, shown.show_shared),
    _sharing("services", Services, shown.show_services),
    _sharing("backbone", Backbone, shown.show_backbone),
    _sharing("radio", Radio, shown.show_radio),
    _sharing("functions", Functions, shown.show_functions),
    Verb(
        name="fleet experts", asks=Experts, inputs=of(experts_inputs), run=run_group,
        show=lambda record: emit(shown.group_rows(record)),
    ),
)  # fmt: skip
