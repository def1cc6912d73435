"""Streams of text requests on replicas of a model: at one rate, or at several, and up to which rate they hold."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, text
from etude.base.parameters import parameters_of, request_of
from etude.base.shapes import names_in
from etude.make.generate.model import Model, positions_of
from etude.world.serve.asked.ranges import with_ranges
from etude.world.serve.asked.service import (
    ModelService,
    ProgramInput,
    Replicas,
    ReplicasInput,
    RulesInput,
    program_replicas,
    replicas_of,
)
from etude.world.serve.asked.stream import PANEL, RequestStream, StreamInput, stream_of
from etude.world.serve.program_tables import ServedProgram
from etude.world.serve.requests import Requests
from etude.world.serve.results import summary
from etude.world.serve.serving import Served

HOLDS: Final = 0.9
"""Part of the requests within their limits down to which a rate holds."""
CURVE: Final = ("requests", "goodput_rps", "within_limits", "output_tokens_per_s", "busy", "energy_j")
ASKED: Final = names_in("""
    model system tp ep precision replicas router requests rate slo stack seed
""")


@dataclass(frozen=True, kw_only=True)
class TextInput(RulesInput, StreamInput, ProgramInput, ReplicasInput):
    """Parameters of a stream of requests on replicas of a model."""

    slo: str = text(
        "limits of goodput: `ttft=1s,tpot=50ms`; `chat:ttft=1s;batch:latency=60s`", like="ttft=1s", panel=PANEL
    )
    max_model_len: int = figure(
        "count",
        "longest prompt and answer together, in tokens: longer prompts are refused and answers end there; 0: "
        "no limit, and a note where requests are longer than the model takes",
        0,
        panel="The engine",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TextServing:
    """A stream, and the replicas that it is served on."""

    replicas: Replicas
    stream: RequestStream
    keep_passes: bool = False

    def run(self) -> TextServed:
        """Every rate of the stream, from the lowest."""
        made = self.replicas.open()
        rates = self.stream.rates or (0.0,)
        keep = self.keep_passes
        streams = [self.stream.at(rate) for rate in rates]
        said = self.lengths(streams[0])
        points = [(rate, made.serve(one, keep_passes=keep)) for rate, one in zip(rates, streams, strict=True)]
        more = {"refused_requests": streams[0].refused} if self.stream.max_model_len else {}
        return TextServed(made, points, more, said)

    def lengths(self, requests: Requests) -> tuple[str, ...]:
        """What is to be said of requests that are longer than the engine, or the model, takes. Refuses a stream of
        which the model takes no prompt."""
        most, limit = self.stream.max_model_len, self.positions
        if most:
            count = len(requests) + requests.refused
            cut = f"{requests.refused:,} of {count:,} requests have no room in {most:,} tokens, and are refused"
            more = f"{most:,} tokens are more than the model takes, which is {limit:,}: it is served as if it took them"
            return (*([cut] if requests.refused else []), *([more] if 0 < limit < most else []))
        whole, shortest = requests.prompt + requests.output, int(requests.prompt.min())
        longer = int((whole > limit).sum()) if limit else 0
        if longer and shortest > limit:
            hint = f"shorter prompts; --max-model-len {int(whole.max())} serves them as if the model took them"
            raise UsageError(f"every prompt has {shortest:,} tokens or more, and the model takes {limit:,}", hint=hint)
        said = f"{longer:,} of {len(requests):,} requests are longer than the {limit:,} tokens that the model takes, "
        said += f"and are served as if it took them; --max-model-len {limit} refuses or cuts them, as engines do"
        return (said,) if longer else ()

    @property
    def positions(self) -> int:
        """Tokens that the model takes; 0: not known."""
        model = self.replicas.model
        if isinstance(model, ServedProgram):
            return 0
        return positions_of(model.name if isinstance(model, Model) else str(model))


def text_serving(asked: TextInput) -> TextServing:
    replicas = program_replicas(asked, asked.slo) if asked.program else replicas_of(asked, asked.slo)
    stream = stream_of(asked)
    if stream.drawn or replicas.draws:
        replicas, stream = replace(replicas, seed=asked.seed), replace(stream, seed=asked.seed)
    stream = replace(stream, max_model_len=asked.max_model_len)
    return TextServing(replicas=replicas, stream=stream)


def said_of(asked: Any) -> dict[str, Any]:
    """What a folder says of the request: the parameters of ASKED, and whatever else was given of the replicas."""
    request = request_of(asked)
    known = {name: request.values[name] for name in ASKED}
    of_parts = {p.field.name: str(request.given[p.name]) for p in parts_given(request)}
    program = {name: str(request.given[name]) for name in ("program", "answer", "pp", "cp") if name in request.given}
    return {name: str(value) if name == "model" else value for name, value in known.items()} | program | of_parts


def parts_given(request: Any) -> list[Any]:
    """Parameters of the engine and of what is between replicas that were given."""
    known = parameters_of(request.cls).values()
    return [p for part in ("engine", "between") for p in known if p.part == part and p.name in request.given]


@dataclass(slots=True)
class TextServed:
    """What happened at each rate."""

    service: ModelService
    points: list[tuple[float, Served]]
    more: dict[str, Any] = field(default_factory=dict)
    """Of the record: what else was worked out."""
    said: tuple[str, ...] = ()
    """Notes on the requests."""

    def __post_init__(self) -> None:
        self.more = {"interpolation_error": self.service.interpolation_error} | self.more
        if self.service.placed.experts:
            self.more["experts"] = self.service.placed.experts
        if self.service.placed.notes:
            self.more["assumptions"] = list(self.service.placed.notes)

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.service.notes, *self.said)

    def rows(self) -> list[dict[str, Any]]:
        """The summary of each rate."""
        rate = len(self.points) > 1
        limits = self.service.limits
        return [
            ({"rate_rps": r} if rate else {}) | with_ranges(self.service, summary(one, limits=limits), one)
            for r, one in self.points
        ]

    def record(self) -> dict[str, Any]:
        """What `etude serve --json` prints."""
        found = self.rows()
        if len(found) > 1:
            return {"rates": found, "holds_rps": holds_rps(found, HOLDS), **self.more}
        return found[0] | self.more

    def kept(self) -> tuple[Served, dict[str, Any]]:
        """The stream that a folder keeps, and its record: of several rates the highest that holds."""
        shown, curve = self.points[-1][1], {}
        if len(self.points) > 1:
            curve = curve_of(self.points, self.service.limits, HOLDS)
            chosen = self.points[shown_point(curve)][1]
            shown = self.service.serve(chosen.requests, keep_passes=True, again=True)
        return shown, summary(shown, limits=self.service.limits) | self.more | curve


# -- several rates -----------------------------------------------------------------------------------------------------


def holds_rps(found: list[dict[str, Any]], part: float) -> float | None:
    """The highest rate before the first at which fewer requests than this part are within the limits."""
    held = None
    for one in found:
        if one["within_limits"] < part:
            break
        held = float(one["rate_rps"])
    return held


def curve_of(points: list[tuple[float, Served]], limits: dict[str, dict[str, float]], part: float) -> dict[str, Any]:
    """What a folder keeps of all rates: `rates` and `holds_rps`."""
    rates = []
    for rate, served in points:
        one = summary(served, limits=limits)
        times = {name: {key: one[name][key] for key in ("p50", "p99")} for name in ("ttft_s", "tpot_s") if one[name]}
        rates.append({"rate_rps": rate, **{name: one[name] for name in CURVE}, **times})
    return {"rates": rates, "holds_rps": holds_rps(rates, part)}


def shown_point(curve: dict[str, Any]) -> int:
    """Whose stream is shown: that of the highest rate that holds, or of the lowest."""
    rates = [one["rate_rps"] for one in curve["rates"]]
    return rates.index(curve["holds_rps"]) if curve["holds_rps"] in rates else 0
