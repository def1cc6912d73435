"""What is asked of a stream of images: its parameters, and what is served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, part, text
from etude.base.outputs import Printed
from etude.base.parameters import request_of, spelled
from etude.kernels.arrays import I64
from etude.machine import System, open_system
from etude.world.clock import run_alone
from etude.world.scenario import PrintedScenario, ScenarioText, only_workload, workload_of
from etude.world.serve.asked.kept import KeptStream, ServedPlace, ServingKept, told
from etude.world.serve.asked.stream import rates_of
from etude.world.serve.images.costs import ImageCosts, image_costs
from etude.world.serve.images.requests import MIX, ImageRequests, image_stream
from etude.world.serve.images.results import image_summary
from etude.world.serve.images.serving import ImageLoop, ServedImages
from etude.world.serve.images.words import DegreeRule, degree_rule
from etude.world.serve.limits import parse_limits
from etude.world.serve.pools import function_of

REQUESTS: Final = "Requests"
DEVICES: Final = "Devices"


class ImageOrder(StrEnum):
    """Which image goes first."""

    FCFS = "fcfs"
    EDF = "edf"
    SHORTEST = "shortest"


@dataclass(frozen=True, kw_only=True)
class ServeImages(PrintedScenario, KeptStream):
    """Images and videos, denoised on groups of devices whose number may change from step to step

    etude serve images wan2.1-14b --gpus 16 --system dgx-h100 --requests dit.csv
    etude serve images wan2.1-14b --gpus 16 --system dgx-h100 --requests dit.csv \\
        --degree fixed:4 --slo latency=120s
    etude serve images flux.1-dev --system dgx-h100 --rate 2 --degree elastic:1..4 \\
        --requests "mix:512x512@20=0.6,1024x1024@28=0.4"
    """

    model: str = argument("text", "a diffusion model of the catalogue", "", like="flux.1-dev")
    system: str = text(
        "simulate there: a name of `etude systems`, or a file", names=("-s",), like="dgx-h200", panel=DEVICES
    )
    gpus: int = figure("count", "number of devices that images share", 8, panel=DEVICES)
    degree: str = figure(
        "text",
        "devices per denoising step: fixed:4, elastic, elastic:1..8, FILE.py:name",
        "elastic",
        like="fixed:1",
        panel=DEVICES,
    )
    images_at_once: int = figure("count", "most images of one size in one step", 1, most=16, panel=DEVICES)
    scheduling_policy: ImageOrder = figure(
        "choice", "order of requests: by arrival, deadline, or shortest first", ImageOrder.FCFS, panel=DEVICES
    )
    set_up_ns: int = figure(
        "time", "time to set up a group of devices, of a degree that changes", 1_000_000_000, zero=True, panel=DEVICES
    )
    encode_ns: int = figure("time", "time to encode a text, on one device", 0, panel=DEVICES)
    stack: str = figure("text", "software stack of the engine: xdit-0.4, none", "xdit-0.4", like="none", panel=DEVICES)
    requests: str = figure(
        "path",
        "file of requests, or `mix:1024x1024@28=0.7,480x832x81@50=0.3`",
        "",
        like="mix:512x512@20",
        panel=REQUESTS,
    )
    rate: str = text("requests per second: `4`, or `1..20` for a curve", like="7", panel=REQUESTS)
    first: int = figure("count", "use only the first requests of a file, this many; 0: all", 0, panel=REQUESTS)
    count: int = figure("count", "number of requests of a mix", 500, panel=REQUESTS)
    burst: float = figure(
        "number",
        "variation of the gaps between requests of a mix: 1 is Poisson, 0 is even",
        1.0,
        zero=True,
        panel=REQUESTS,
    )
    seed: int = figure("count", "random seed", 0, panel=REQUESTS)
    slo: str = text("limit of goodput: `latency=60s`", like="latency=60s", panel=REQUESTS)
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageServing:
    """Images, and the devices that they are served on."""

    model: str
    system: str
    requests: str
    rates: tuple[float, ...]
    drawn: Mapping[str, Any]
    """Options of `image_stream` that this kind of stream has."""
    gpus: int
    degree: str
    rule: Mapping[str, Any]
    """Of `degree_rule`."""
    stack: str
    encode_ns: int
    limit_s: float

    def ready(self) -> ImageLoop:
        """The stream at its only rate, before its first request."""
        return self._loop(self.rates[0] if self.rates else 0.0)

    def _loop(self, rate: float, costs: ImageCosts | None = None) -> ImageLoop:
        rule = degree_rule(self.degree, self.gpus, function_of, **self.rule)
        stream = image_stream(self.requests, rate_per_s=rate, **self.drawn)
        return ImageLoop(stream, costs or self.costs_on(open_system(self.system), stream.sizes, rule), self.gpus, rule)

    def costs_on(self, system: System, sizes: I64, rule: DegreeRule) -> ImageCosts:
        """What images of these sizes take on a system."""
        return image_costs(
            self.model,
            system,
            sizes,
            rule.degrees,
            stack=self.stack,
            batch=rule.batch,
            encode_ns=self.encode_ns,
        )

    def run(self) -> ImagesServed:
        found: list[dict[str, Any]] = []
        costs: ImageCosts | None = None
        for rate in self.rates or (0.0,):
            loop = run_alone(self._loop(rate, costs))
            costs = loop.tasks.costs
            one = image_summary(loop.served(), latency_limit_s=self.limit_s)
            found.append(({"rate_rps": rate} if len(self.rates) > 1 else {}) | one)
        return ImagesServed(loop.served(), found, _sizes(loop.requests, loop.tasks.costs))


@dataclass(frozen=True, slots=True)
class ImagesServed:
    served: ServedImages
    """At the last rate."""
    rows: list[dict[str, Any]]
    """The summary of each rate."""
    sizes: list[dict[str, Any]]
    notes: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """What `etude serve images --json` prints."""
        return {"rates": self.rows, "sizes": self.sizes} if len(self.rows) > 1 else self.rows[0] | {"sizes": self.sizes}


def readable(found: ImagesServed) -> list[dict[str, Any]]:
    """A row for each rate."""
    return [_row(one) for one in found.rows]


def _row(one: dict[str, Any]) -> dict[str, Any]:
    shown = {"requests/s": round(one["rate_rps"], 3)} if "rate_rps" in one else {}
    spent = one["device_s"]
    return shown | {
        "finished": one["finished"],
        "latency mean s": round(one["latency_s"]["mean"], 2),
        "p50 s": round(one["latency_s"]["p50"], 2),
        "p99 s": round(one["latency_s"]["p99"], 2),
        "within": f"{one['within_limits']:.1%}",
        "done/s": round(one["throughput_rps"], 4),
        "degree": round(one["mean_degree"], 2),
        "set-ups": one["set_ups"],
        "busy": f"{spent['busy'] / spent['all']:.1%}",
        "set-up": f"{spent['set_up'] / spent['all']:.2%}",
    }


def _sizes(stream: ImageRequests, costs: ImageCosts) -> list[dict[str, Any]]:
    return [
        {"frames": f, "height": h, "width": w, "decode_s": float(costs.decode_ns[k]) / 1e9,
         "step_s": {str(d): float(t) / 1e9 for d, t in zip(costs.degrees, costs.step_ns[k, :, 0], strict=True) if t}}
        for k, (f, h, w) in enumerate(stream.sizes.tolist())
    ]  # fmt: skip


def image_serving(asked: ServeImages) -> ImageServing:
    """Reads what this stream and these devices have."""
    if not (model := asked.model):
        raise UsageError("no model is given", hint="etude serve images flux.1-dev --system dgx-h100 --requests dit.csv")
    if not (system := asked.system):
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    if not (requests := asked.requests):
        raise UsageError("no requests are given", hint='--requests FILE, or "mix:1024x1024@28=0.7,480x832x81@50=0.3"')
    limits = parse_limits(asked.slo)
    if set(limits) != {""} or set(limits[""]) - {"latency_s"}:
        raise UsageError("--slo: images have one limit", hint="latency=60s, or the column deadline")
    rates = rates_of(asked.rate)
    mixed = requests.startswith(MIX)
    if mixed and not rates:
        raise UsageError("a mix needs a rate", hint="--rate 0.5")
    degree = asked.degree
    drawn = {"count": asked.count, "cv": asked.burst, "seed": asked.seed} if mixed else {"first": asked.first}
    gpus = asked.gpus
    degree_rule(degree, gpus, lambda name: str)  # whether the words are right; a function of theirs is not loaded yet
    set_up = {} if degree.startswith("fixed") else {"set_up_ns": asked.set_up_ns}
    return ImageServing(
        model=model, system=system, requests=requests, rates=rates, drawn=drawn, gpus=gpus, degree=degree,
        rule={"batch": asked.images_at_once, "order": str(asked.scheduling_policy), **set_up}, stack=asked.stack,
        encode_ns=asked.encode_ns, limit_s=limits[""].get("latency_s", 0.0),
    )  # fmt: skip


def said_of(asked: Any) -> dict[str, Any]:
    """What a folder says of the request."""
    known = request_of(asked).values
    said = {name: known[name] for name in ("model", "system", "requests", "degree", "gpus", "stack")}
    rates = rates_of(known["rate"])
    drawn = {"count": known["count"], "first": known["first"], "cv": known["burst"], "seed": known["seed"]}
    return said | {"rate": rates[0] if rates else 0.0, "batch": known["images_at_once"], **drawn}


def images_inputs(asked: ServeImages) -> ServingKept:
    serving, folder = image_serving(asked), ServedPlace.of(asked, lambda: said_of(asked))
    if folder is not None and len(serving.rates) > 1:
        raise UsageError("--out needs a single rate", hint="one --rate with -o")
    return ServingKept(serving=serving, folder=folder)


def images_scenario(asked: ServeImages, given: ServingKept) -> ScenarioText:
    """This stream alone on a machine."""
    serving: ImageServing = given.serving
    if len(serving.rates) > 1:
        raise UsageError(f"{spelled(asked, 'scenario')} needs one rate", hint="--rate 2")
    nodes, left = divmod(serving.gpus, open_system(serving.system).levels[0].size)
    if left:
        hint = f"{spelled(asked, 'gpus')} {serving.gpus - left or open_system(serving.system).levels[0].size}"
        raise UsageError(f"images of a scenario have whole nodes, and {serving.gpus} devices are not", hint=hint)
    workload = {**workload_of(asked, "images"), "gpus": serving.gpus}
    return only_workload("images", workload, system=serving.system, nodes=nodes)


def run_images(given: ServingKept) -> ImagesServed:
    found: ImagesServed = told(given.serving)
    if given.folder is not None:
        given.folder.keep(found.served, found.rows[0])
    return found
