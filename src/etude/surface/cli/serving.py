"""`--serve` of `etude generate` and `etude predict`: its flags, and what it does."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.base.figures import key_of
from etude.make.generate.serving import Serving
from etude.surface.api.making import memory_limit
from etude.surface.cli.output import say
from etude.surface.cli.plan_flags import model_of, plan_of, with_fields

if TYPE_CHECKING:
    from etude.cost.needs import Quantised
    from etude.make.generate.serving import Request, ServedJob

PANEL = "Serving, with --serve"
with_serving = with_fields(Serving, "serving", PANEL)

Serve = Annotated[bool, typer.Option("--serve", help="Inference instead of training.", rich_help_panel=PANEL)]
Requests = Annotated[
    Path | None,
    typer.Option(help="A file of requests, as for `etude serve`. With --system they queue.", rich_help_panel=PANEL),
]
Draft = Annotated[str, typer.Option(help="The model that proposes tokens.", rich_help_panel=PANEL)]


@dataclass(frozen=True)
class Asked:
    """What the command line says of a job that serves."""

    model: str
    hf: Path | None
    flags: dict[str, Any]
    serving: dict[str, Any]
    plan: Path | None
    requests: Path | None
    draft: str
    system: str
    memory: str
    name: str


def served(asked: Asked, *, check: bool = True, weights: "Quantised | None" = None) -> "ServedJob":
    """The job, with weights of products kept as a kernel asks. Without --gpus there are as many ranks as one instance
    needs, or all instances of a split."""
    from etude.machine import open_system
    from etude.make.generate.serving import check_serving_memory, serve

    keys = {f.name: key_of(f) for f in fields(Serving)}
    options = Serving.from_dict({keys[name]: value for name, value in asked.serving.items()})
    flags = dict(asked.flags)
    if asked.plan is None:
        flags.setdefault("gpus", flags.get("tp", 1) * flags.get("pp", 1) * max(sum(options.split), 1))
    device = open_system(asked.system).device if asked.system else None
    found = serve(
        model_of(asked.model, asked.hf),
        plan_of(flags, asked.plan, asked.model),
        options,
        requests=_requests(asked.requests) if asked.requests else None,
        draft=model_of(asked.draft) if asked.draft else None,
        device=device,
        name=asked.name,
        weights=weights,
    )
    limit = memory_limit(asked.memory) if asked.memory else device.memory_bytes if device else 0
    if check:
        check_serving_memory(found, limit)
    return found


def _requests(path: Path) -> "tuple[Request, ...]":
    """Requests from a file that `etude serve` reads; only tokens and times are used. Raises UsageError if requests wait
    for others."""
    from etude.make.generate.serving import Request
    from etude.world.serve import request_stream

    found = request_stream(path)
    if len(found.parent):
        raise UsageError("requests that wait for others cannot be generated", where=str(path), hint="etude serve")
    columns = (found.prompt.tolist(), found.output.tolist(), found.arrival_ns.tolist())
    return tuple(Request(*one) for one in zip(*columns, strict=True))


def predicted(asked: Asked, *, check: bool, json: bool, **options: Any) -> dict[str, Any]:
    """Generated and simulated, with these options: everything, or what a reader wants to see first."""
    from etude.base.units import format_bytes, format_time
    from etude.cost.choice import Menu
    from etude.machine import open_system
    from etude.steps import predict_serving

    weights = Menu.of(options.get("kernels", ()), options.get("units", "")).weights
    found = predict_serving(served(asked, check=check, weights=weights), open_system(asked.system), **options)
    numbers = found.summary()
    for note in found.simulated.notes if options else ():
        say(f"note: {note}")
    if json:
        return numbers
    names = {"ttft_ns": "first token", "tpot_ns": "each further token", "latency_ns": "whole response"}
    times = {
        name: ", ".join(f"{k} {format_time(round(v))}" for k, v in numbers[key].items())
        for key, name in names.items()
        if key in numbers
    }
    return {
        "all requests": format_time(numbers["makespan_ns"]),
        **times,
        "tokens/s": round(numbers["tokens_per_s"], 1),
        "tokens/s per GPU": round(numbers["tokens_per_s_per_gpu"], 1),
        "passes": numbers["passes"],
        "peak memory": format_bytes(numbers["memory_peak_bytes"]),
    }


def refuse(serving: dict[str, Any], requests: Path | None, draft: str) -> None:
    """Flags of serving without --serve would do nothing."""
    given = [f"--{name.replace('_', '-')}" for name in serving]
    given += ["--requests"] if requests else []
    given += ["--draft"] if draft else []
    if given:
        raise UsageError(f"{given[0]} applies only to serving", hint="add --serve")


def shown(found: "ServedJob") -> dict[str, Any]:
    from etude.base.units import format_bytes, format_count

    numbers = found.summary()
    return {
        "model": f"{found.model.name}, {format_count(numbers['params'])} parameters",
        "ranks": f"{numbers['ranks']:,}, {numbers['distinct_traces']} distinct programs",
        "requests": f"{numbers['requests']:,}: {numbers['prompt_tokens']:,} tokens in, "
        f"{numbers['output_tokens']:,} out",
        "passes": numbers["passes"],
        "nodes": f"{numbers['nodes']:,}",
        "operations": format_count(numbers["flops"]),
        "communication": {kind: format_bytes(size) for kind, size in numbers["comm_bytes_by_type"].items()},
        "peak memory": f"{format_bytes(numbers['memory_peak_bytes'])} (weights "
        f"{format_bytes(numbers['weights_bytes'])}, keys and values {format_bytes(numbers['kv_peak_bytes'])})",
    }
