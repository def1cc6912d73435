"""The cheapest deployment of a model for a stream of requests and its limits.

search: deployment
model: llama3-8b
requests: r.csv                     # or `rate: 8`, with count, prompt, output, burst
slo: ttft=1s,tpot=50ms
part: 0.99                          # of the requests has to be within the limits
prices: {dgx-h100: 2.5, dgx-a100: 1.3}      # $ an hour of a device
tp: [1, 2]                          # and pp, ep, precision, split, max_num_batched_tokens, max_num_seqs
most: 64                            # devices
score: [cost, ttft_p99]             # or tpot_p99, itl_p99, latency_p99, energy

For each kind of replica the least number that keeps the limits is found by serving the stream, and then some more of
them (`spare`), which cost more and have shorter tails. That more replicas never keep fewer limits is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import ceil, exp
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, text, usage_errors
from etude.decide.search.found import Found
from etude.decide.search.request import PARALLEL, SearchRequest, SpaceFile, known_word
from etude.decide.search.solver import ALL, Answer, CandidateSpace, Trials
from etude.decide.study import evaluate
from etude.decide.study.space import Space as Points
from etude.world.serve.asked.ranges import width_of, with_ranges, within_at
from etude.world.serve.asked.service import ModelService, Replicas, check_stages
from etude.world.serve.asked.stream import RequestStream, is_generated
from etude.world.serve.engine import Engine
from etude.world.serve.limits import parse_limits
from etude.world.serve.pools import Between, Pool
from etude.world.serve.pools.groups import ReplicaRole, split_of
from etude.world.serve.requests import Requests
from etude.world.serve.results import Limits, kept_limits, summary

SCORES: Final = {
    "cost": "cost_per_hour",
    "ttft_p99": "ttft_p99_s",
    "tpot_p99": "tpot_p99_s",
    "itl_p99": "itl_p99_s",
    "latency_p99": "latency_p99_s",
    "energy": "energy_j_per_token",
}
AXES: Final = ("tp", "pp", "ep", "precision", "split", "max_num_batched_tokens", "max_num_seqs")
MEMORY, PLAN, MOST, SLO, SAME = (
    "memory",
    "plan",
    "more devices than `most`",
    "slo",
    "as many replicas as with less spare",
)
"""Why a candidate has no row."""
TAILS: Final = ("ttft_s", "tpot_s", "itl_s", "latency_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentQuestion:
    """The keys of the space."""

    model: str = figure("text", "a model of the catalogue, or a file")
    requests: str = text("file of requests, or a generator")
    first: int = figure("count", "use only the first requests", 0)
    rate: float = figure("number", "requests per second; stretches the gaps of a file", 0.0)
    count: int = figure("count", "number of drawn requests, without a file", 500)
    prompt: int = figure("count", "their tokens in", 1024)
    output: int = figure("count", "their tokens out", 128)
    burst: float = figure("number", "variation of their gaps", 1.0, zero=True)
    slo: str = figure("text", "limits, as `etude serve --slo`")
    part: float = figure("fraction", "of the requests has to be within the limits", 0.99)
    prices: Mapping[str, float] = figure("map of number", "system -> $ an hour of one of its devices")
    tp: tuple[int, ...] = figure("list", "tensor-parallel ranks", (1, 2, 4, 8), of=int)
    pp: tuple[int, ...] = figure("list", "stages of a replica", (1,), of=int)
    ep: tuple[int, ...] = figure("list", "ranks over which experts are spread", (1,), of=int)
    precision: tuple[str, ...] = figure("list", "of weights and products", ("bf16",), of=str)
    split: tuple[str, ...] = figure(
        "list", "replicas for prefill and decode, `1:2`; `none`: together", ("none",), of=str
    )
    max_num_batched_tokens: tuple[int, ...] = figure("list", "largest number of tokens in a pass", (2048,), of=int)
    max_num_seqs: tuple[int, ...] = figure("list", "largest number of running sequences", (256,), of=int)
    most: int = figure("count", "devices", 64)
    spare: tuple[float, ...] = figure("list", "replicas over the fewest", (1.0, 1.25, 1.5, 2.0), of=float)
    score: tuple[str, ...] = figure("list", "what decides, and the frontier", ("cost", "ttft_p99"), of=str)
    stack: str = figure("text", "software of the engine", "vllm")
    cache: str = figure("text", "reuse of earlier prompts", "none")

    def limits(self) -> Limits:
        found = {tier: dict(its) for tier, its in parse_limits(self.slo).items()}
        if not any(found.values()):
            raise UsageError("no limit is given", where="slo", hint="slo: ttft=1s,tpot=50ms")
        return found

    def stream(self, folder: Any, seed: int) -> Requests:
        rates = (self.rate,) if self.rate else ()
        if not self.requests and not rates:
            raise UsageError("no requests are given", hint="requests: r.csv, or rate: 4")
        if self.requests:
            path = str(folder / self.requests) if (folder / self.requests).is_file() else self.requests
            more = {} if is_generated(path) else {"first": self.first}
            return RequestStream(path=path, rates=rates, options=more, seed=seed).one()
        lengths = {"count": self.count, "prompt": self.prompt, "output": self.output, "cv": self.burst}
        return RequestStream(rates=rates, options=lengths, seed=seed).one()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaKind:
    """How one replica is made, or the smallest group of replicas that read prompts and others that decode."""

    system: str
    tp: int
    pp: int
    ep: int
    precision: str
    split: str
    max_num_batched_tokens: int
    max_num_seqs: int

    @property
    def parts(self) -> tuple[int, ...]:
        return (1,) if self.split == "none" else split_of(self.split)

    @property
    def gpus(self) -> int:
        return sum(self.parts) * self.tp * self.pp

    def pools(self) -> tuple[Pool, ...]:
        roles = (ReplicaRole.BOTH,) if self.split == "none" else (ReplicaRole.PREFILL, ReplicaRole.DECODE)
        return tuple(
            Pool(role=role, count=count, tp=self.tp, ep=self.ep, pp=self.pp)
            for role, count in zip(roles, self.parts, strict=True)
        )

    def flags(self, times: int, asked: DeploymentQuestion) -> str:
        """The command that serves the stream with this many of it."""
        said = [f"etude serve {asked.model} --system {self.system}"]
        usual = {"tp": 1, "pp": 1, "ep": 1, "precision": "bf16", "max_num_batched_tokens": 2048, "max_num_seqs": 256}
        said += [f"--{k.replace('_', '-')} {getattr(self, k)}" for k, v in usual.items() if getattr(self, k) != v]
        counts = ":".join(str(times * part) for part in self.parts)
        said += [f"--disaggregate {counts}" if len(self.parts) > 1 else f"--replicas {counts}"]
        said += [
            f"--{name} {value}"
            for name, value in (("stack", asked.stack), ("cache", asked.cache))
            if value not in ("vllm", "none")
        ]
        said += [
            f"--requests {asked.requests}"
            if asked.requests
            else f"--count {asked.count} --prompt {asked.prompt} --output {asked.output}"
        ]
        said += [f"--first {asked.first}"] if asked.first else []
        said += [f"--burst {asked.burst:g}"] if not asked.requests and asked.burst != 1.0 else []
        said += [f"--rate {asked.rate:g}"] if asked.rate else []
        return " ".join([*said, f'--slo "{asked.slo}"'])


Candidate = tuple[ReplicaKind, float]
"""A kind of replica, and how many over the fewest."""


def space(given: SpaceFile, asked: SearchRequest) -> DeploymentSpace:
    asked.once("deployments")
    return DeploymentSpace(given, asked)


def options(keys: Mapping[str, Any], method: str) -> frozenset[str]:
    path = str(keys.get("requests") or "")
    return PARALLEL if path and not is_generated(path) else PARALLEL | {"seed"}


class DeploymentSpace(CandidateSpace[Candidate]):
    """Kinds of replicas on every system that has a price."""

    methods = ALL

    def __init__(self, given: SpaceFile, asked: SearchRequest) -> None:
        with usage_errors():
            self.question = question = given.read(DeploymentQuestion)
        drawn = [name for name in ("count", "prompt", "output", "burst") if question.requests and name in given.keys]
        if drawn:
            raise UsageError(f"`{drawn[0]}` is not read with `requests`", where=given.where, hint="leave it out")
        for name in question.score:
            known_word("score", name, SCORES, given.where)
        if not question.score or any(spare < 1.0 for spare in question.spare):
            raise UsageError("a score, and spares of 1 or more are needed", where=given.where, hint="spare: [1, 1.5]")
        self.asked, self.where, self.limits = asked, given.where, question.limits()
        self.stream = question.stream(given.folder, asked.seed)
        self.model = given.file_or_name(question.model)
        self.scores = {SCORES[name]: 1 for name in question.score}
        every = product(question.prices, *(getattr(question, name) for name in AXES))
        kinds = [ReplicaKind(**dict(zip(("system", *AXES), one, strict=True))) for one in every]
        self.listed = [(kind, spare) for kind in kinds for spare in sorted({1.0, *question.spare})]
        self.size = len(self.listed)

    def rows(self, some: Sequence[Candidate], limit: float) -> list[Answer]:
        points = Points(rows=[{**asdict(kind), "spare": spare} for kind, spare in some])
        shared = {"question": self.question, "model": self.model, "stream": self.stream, "limits": self.limits}
        table = evaluate(points, deployed_row, shared=shared, **self.asked.carrying()).to_pylist()
        return [self._answer(row) for row in table]

    def _answer(self, row: dict[str, Any]) -> Answer:
        if row["error"]:
            raise UsageError(row["error"], where=self.where)
        if row["why"]:
            return str(row["why"])
        row = {name: value for name, value in row.items() if name not in ("error", "why")}
        missing = next((name for name in self.scores if row[name] is None), "")
        return f"{missing} is not known" if missing else row

    def found(self, trials: Trials[Candidate]) -> Found:
        if not trials.rows:
            why = ", ".join(f"{count:,} {reason}" for reason, count in trials.why().items())
            hint = "more `most`, other `tp`, looser limits, or a smaller `part`"
            raise UsageError(f"no deployment keeps the limits: {why}", where=self.where, hint=hint)
        tails = [name for name in self.scores if name.endswith("_p99_s")]
        axes = ["system", *(name for name in AXES if len(getattr(self.question, name)) > 1), "replicas"]
        axes += [f"{name}_{end}" for name in tails for end in ("low", "high")]
        notes = [
            f"{self.question.part:.1%} of {len(self.stream):,} requests have to be within the limits; more "
            "replicas are taken never to keep fewer"
        ]
        first = trials.ranked()[0][1]
        notes.append(f"range of the price of the best: {first['price_basis']}")
        if tails and first[f"{tails[0]}_low"] is not None:
            notes.append(f"ranges of tails are as wide as those of their means: {first['tail_basis']}")
        unknown = {text for row in trials.rows.values() for text in row["unknown"].split("; ") if text}
        notes += sorted(unknown)
        return trials.found(notes=notes, more={"axes": axes, "scores": list(self.scores)})


# -- one candidate -----------------------------------------------------------------------------------------------------


_OPENED: dict[ReplicaKind, tuple[int, ModelService] | str] = {}
"""Per process, of the last question: the fewest of a kind and its service, or why there is none."""
_ABOUT: list[Any] = []


def deployed_row(
    question: DeploymentQuestion, model: str, stream: Requests, limits: Limits, spare: float, **kind: Any
) -> dict[str, Any]:
    """The row of this many over the fewest replicas, or `why` there is none."""
    one = ReplicaKind(**kind)
    if not _ABOUT or _ABOUT[0] is not question:
        _OPENED.clear()
        _ABOUT[:] = [question]
    if one not in _OPENED:
        _OPENED[one] = fewest(one, question, model, stream, limits)
    found = _OPENED[one]
    if isinstance(found, str):
        return {"why": found}
    least, service = found
    times = ceil(least * spare - 1e-9)
    if times * one.gpus > question.most:
        return {"why": MOST}
    smaller = [s for s in {1.0, *question.spare} if s < spare]
    if any(ceil(least * s - 1e-9) == times for s in smaller):
        return {"why": SAME}
    return {"why": ""} | _row(one, times, question, service, stream, limits)


def fewest(
    one: ReplicaKind, question: DeploymentQuestion, model: str, stream: Requests, limits: Limits
) -> tuple[int, ModelService] | str:
    """The fewest of a kind that keep the limits, by halves between 1 and all devices."""
    from etude.world.serve.deployment import NoRoomError

    most = question.most // one.gpus
    if not most:
        return MOST
    engine = Engine(
        max_num_batched_tokens=one.max_num_batched_tokens, max_num_seqs=one.max_num_seqs, cache=question.cache
    )
    costs = {"precision": one.precision, "stack": question.stack, "ops": None, "kv_dtype": ""}
    try:
        check_stages(one.pools(), engine, Between(), offload=False)
        service = Replicas(
            model=model,
            system=one.system,
            pools=one.pools(),
            costs=costs,
            engine=engine,
            between=Between(),
            limits=limits,
        ).open()
    except NoRoomError:
        return MEMORY
    except UsageError:
        return PLAN

    def holds(times: int) -> bool:
        served = with_times(service, times).serve(stream)
        return bool(kept_limits(served, limits).mean() >= question.part)

    try:
        if not holds(most):
            return SLO
    except UsageError:  # a request that never fits
        return MEMORY
    low, high = 0, most
    step = 1
    while step < most:
        if holds(step):
            high = step
            break
        low, step = step, step * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high, service


def with_times(service: ModelService, times: int) -> ModelService:
    """The same with this many times its replicas."""
    groups = [replace(group, count=group.count * times) for group in service.groups]
    return replace(service, groups=groups, pools=[replace(pool, count=pool.count * times) for pool in service.pools])


def _row(
    one: ReplicaKind, times: int, question: DeploymentQuestion, service: ModelService, stream: Requests, limits: Limits
) -> dict[str, Any]:
    made = with_times(service, times)
    served = made.serve(stream)
    record = with_ranges(made, summary(served, limits=limits))
    gpus, price = one.gpus * times, question.prices[one.system]
    cost = gpus * price
    tokens_per_s = record["output_tokens_per_s"]
    rate = width_of(record, "output_tokens_per_s")
    energy = record["energy_j"]
    return asdict(one) | {
        "replicas": ":".join(str(times * part) for part in one.parts),
        "gpus": gpus,
        "cost_per_hour": cost,
        **price_range(times, one.gpus * price, rate),
        "price_basis": record["basis"]["output_tokens_per_s"]["text"],
        "cost_per_million_tokens": cost / 3600 / tokens_per_s * 1e6,
        "energy_j_per_token": None if energy is None else energy / float(stream.output.sum()),
        "within_limits": record["within_limits"],
        **{f"within_limits_{end}": part for end, part in within_at(record, served, limits).items()},
        **_tails(record),
        "tail_basis": record["basis"]["ttft_s"]["text"],
        "unknown": "; ".join(basis["text"] for basis in record["basis"].values() if not basis["evidence"]),
        "output_tokens_per_s": tokens_per_s,
        "busy": record["busy"],
        "flags": one.flags(times, question),
    }


def _tails(record: Mapping[str, Any]) -> dict[str, float | None]:
    """99th percentiles, with ranges as wide as those of the means; None where a stream has none or nothing is known."""
    found: dict[str, float | None] = {}
    for name in TAILS:
        column, width = f"{name.removesuffix('_s')}_p99_s", width_of(record, name) if record[name] else None
        found[column] = value = (record[name] or {}).get("p99")
        for end, sign in (("low", -1), ("high", 1)):
            found[f"{column}_{end}"] = None if width is None or value is None else value * exp(sign * width)
    return found


def price_range(times: int, price: float, width: float | None) -> dict[str, float | None]:
    """The price if a replica does as much more or less as the range of tokens per second says: whole replicas, as many
    as then do the same work."""
    if width is None:
        return {"cost_per_hour_low": None, "cost_per_hour_high": None}
    low, high = (ceil(times * exp(sign * width) - 1e-9) for sign in (-1, 1))
    return {"cost_per_hour_low": low * price, "cost_per_hour_high": high * price}
