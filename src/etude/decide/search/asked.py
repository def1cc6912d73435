"""Searches: what `etude search` asks for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude.base.errors import UsageError
from etude.base.figures import argument, figure, parse, part, switch, text
from etude.base.outputs import Printed
from etude.base.parameters import given_in, is_given, naming, only_one, replaces, request_of, spelled
from etude.base.talk import progress, say
from etude.steps.asked.plans import PlanInput, plan_keys

if TYPE_CHECKING:
    from etude.decide.search import Found, SearchRequest
    from etude.decide.search.request import Execute


FIGURES = (
    "dp",
    "step_time_ns",
    "tokens_per_s_per_gpu",
    "mfu",
    "memory_peak_bytes",
    "cost_usd",
    "energy_j",
    "cost_per_hour_low",
    "cost_per_hour_high",
    "within_limits",
    "within_limits_low",
)
"""Columns of a table of plans or of deployments besides its axes."""
OF_SPACE = ("model", "hf", "over", "score", "limit", "system", "network", "price", "plan")
OF_MODELS, HOW = "A search over plans of a model", "Search"
OF_DEPLOYMENTS, OF_STREAM = "A search over deployments", "Requests"


@dataclass(frozen=True, kw_only=True)
class HowToSearch:
    """Parameters of any search."""

    method: str = text(
        "all, dp, greedy, anneal, ilp, lp, joint; default: chosen by the kind of space",
        like="all",
        panel=HOW,
        metavar="NAME",
    )
    workers: int = figure("count", "number of processes; 0: one per core", 1, zero=True, names=("-j",), panel=HOW)
    ray: str = text("`auto`, or the address of a Ray cluster", like="auto", panel=HOW)
    seed: int = figure("count", "seed of what is drawn at random", 0, panel=HOW)
    top: int = figure("count", "number of rows of the table", 10, panel=HOW)
    out: str | None = figure("out", "folder for the results; a later search continues from there", None, names=("-o",))
    force: bool = switch("begin anew: what the folder has of earlier searches is not taken", needs="out", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class SearchPlans(PlanInput, HowToSearch):
    """The best of a space of designs: plans, placements, cuts, mixes; scored by simulation, with its frontier

    etude search llama3-8b --gpus 16 --system dgx-h100
    etude search mixtral-8x7b --gpus 32 --system dgx-h100 --over tp,pp,ep,zero --score step,memory -o found/
    etude search llama3-8b --gpus 16 --system tpu-v6e-pod --over tp,zero,placement
    etude search --hf config.json --gpus 4 --system dgx-h100
    etude search llama3-8b --over "gpus=8|16|32,tp=1|2,zero" --system dgx-h100 --global-batch 32 --limit memory=60GB

    With the name of a model its plans are searched: values given by flags are kept, `--over` names the axes. With a
    YAML file that has `search: KIND`, the space of the file is searched: `etude search space --help`. The result says
    which candidates were left out, and why.
    """

    model: str = argument(
        "noun", "a model whose plans are searched, or a YAML file with `search: KIND`", "", of=str, like="gpt2"
    )
    hf: str | None = figure(
        "path", "a Hugging Face `config.json`, or its folder, instead of a model's name", None, panel=OF_MODELS
    )
    over: str = text(
        "axes, with given values or the usual ones: `tp=1|2|4,pp,zero`; fields of a plan, `gpus`, `system`, and "
        "`placement`, which places the ranks of the best three plans; default: all axes that change speed or memory "
        "much",
        like="pp,zero",
        panel=OF_MODELS,
    )
    score: str = text(
        "step, tokens, mfu, memory, cost, energy; several give a frontier; default: step",
        like="tokens",
        panel=OF_MODELS,
    )
    limit: tuple[str, ...] = figure(
        "several",
        "upper limit of a score (lower limit of tokens and mfu): `memory=80GB`; default: the memory of the device",
        (),
        like="memory=50GB",
        panel=OF_MODELS,
    )
    system: str = figure(
        "noun",
        "simulate there: a name of `etude systems`, or a file",
        "",
        of=str,
        names=("-s",),
        like="dgx-a100",
        panel=OF_MODELS,
    )
    stack: str = figure(
        "noun", "software stack: a name that `etude stacks` lists, or a file", "", of=str, like="eager", panel=OF_MODELS
    )
    network: str = text(
        "analytic; or links or flow, if placement matters; default: analytic; flow with `--over placement`",
        like="links",
        panel=OF_MODELS,
        metavar="NAME",
    )
    price: tuple[str, ...] = figure(
        "several", "price of a device in dollars per hour: `2.5`, or `dgx-h100=2.5`", (), like="2.5", panel=OF_MODELS
    )


@dataclass(frozen=True, kw_only=True)
class SearchDeployment(HowToSearch):
    """The cheapest deployment of a model for a stream of requests and its limits, and what shorter tails cost

    etude search deployment llama3-8b --rate 8 --slo ttft=500ms,tpot=30ms --price dgx-h100=2.5 --price dgx-a100=1.3
    etude search deployment llama3-70b --requests r.csv --slo ttft=1s,tpot=50ms --price dgx-h200=3.2 \\
        --over "tp=2|4|8,precision=bf16|fp8,split=none|1:1|1:3" -j 0

    For each kind of replica on each system with a price the fewest that keep the limits are found by serving the
    requests, and then some more. The price has the range that a range of tokens per second leaves, and
    `within_limits_low` is the part within the limits if all times are at the high end of theirs.
    """

    model: str = argument("noun", "a model of the catalogue, or a file", of=str, like="gpt2")
    slo: str = text(
        "limits: `ttft=1s,tpot=50ms`; `chat:ttft=1s;batch:latency=60s`",
        like="ttft=1s",
        panel=OF_DEPLOYMENTS,
    )
    price: tuple[str, ...] = figure(
        "several",
        "a system, and $ an hour of one of its devices: `dgx-h100=2.5`",
        (),
        like="dgx-h100=3",
        panel=OF_DEPLOYMENTS,
    )
    over: str = text(
        "axes: tp, pp, ep, precision, split (`none|1:2`: replicas for prefill and decode), "
        "max_num_batched_tokens, max_num_seqs; default: tp=1|2|4|8",
        like="tp=1|2,split=none|1:1",
        panel=OF_DEPLOYMENTS,
    )
    score: str = figure(
        "text",
        "cost, ttft_p99, tpot_p99, itl_p99, latency_p99, energy; several give a frontier",
        "cost,ttft_p99",
        like="cost",
        panel=OF_DEPLOYMENTS,
    )
    most: int = figure("count", "devices", 64, panel=OF_DEPLOYMENTS)
    part: float = figure(
        "fraction", "part of the requests that has to be within the limits", 0.99, panel=OF_DEPLOYMENTS
    )
    stack: str = figure("text", "software of the engine", "vllm", like="none", panel=OF_DEPLOYMENTS)
    cache: str = figure(
        "text", "reuse of earlier prompts, as `etude serve --cache`", "none", like="prefix", panel=OF_DEPLOYMENTS
    )
    requests: str = figure("path", "file of requests", "", like="r.csv", panel=OF_STREAM)
    first: int = figure("count", "use only the first requests; 0: all", 0, needs="requests", panel=OF_STREAM)
    rate: float = figure(
        "number",
        "requests per second; with a file, its gaps are stretched to it",
        0.0,
        like=2.0,
        panel=OF_STREAM,
    )
    count: int = figure("count", "number of drawn requests, without a file", 500, panel=OF_STREAM)
    prompt: int = figure("count", "prompt tokens of drawn requests", 1024, panel=OF_STREAM)
    output_tokens: int = figure("count", "output tokens of drawn requests", 128, key="output", panel=OF_STREAM)


@dataclass(frozen=True, kw_only=True)
class SearchSpace(HowToSearch):
    """The best of the space of a file: `search:` gives the kind of choice, the other keys describe it

    etude search space space.yaml --set "axes={tp: [1, 2, 4, 8]}" -j 0 --json
    etude search space chain.yaml --method all --top 20
    etude search space plans.yaml --method anneal

    `score` is the objective and `limits` the constraints; `docs/search.md` shows a file of each kind. `etude search
    space.yaml` is the same.
    """

    space: str = argument("path", "YAML file with `search: KIND`", like="other.yaml")
    change: tuple[str, ...] = figure(
        "several",
        "override a key of the file: `score=cost`; the value is YAML",
        (),
        key="set",
        like="score=cost",
        panel=HOW,
    )
    again: str = text("search again at intervals, as links change: `every=10s`", like="every=10s", panel=HOW)
    trust: bool = switch("let the file run programs and Python code, and write outside its folder", panel=HOW)


@dataclass(frozen=True, slots=True)
class SearchInputs:
    space: Any
    """The space of a file, or a `PlanSpace`."""
    asked: "SearchRequest"
    top: int
    """Rows of the table."""


def how_to_search(asked: HowToSearch, read: "frozenset[str]", **more: Any) -> "tuple[SearchRequest, int]":
    """How to search, and the rows that are shown; options that are not among those read are left alone."""
    from etude.decide.search import SearchRequest

    options = {name: getattr(asked, name) for name in ("workers", "ray", "seed") if name in read}
    out = None if asked.out is None else Path(asked.out)
    if asked.output.json and is_given(asked, "top"):
        raise UsageError(f"{spelled(asked, 'top')} is read only without {spelled(asked, 'json')}", hint="leave it out")
    top = 0 if asked.output.json else asked.top
    return SearchRequest(method=asked.method, out=out, fresh=asked.force, progress=progress, **options, **more), top


def space_inputs(asked: SearchSpace) -> SearchInputs:
    from etude.decide.search import options_read, read_space

    given = read_space(asked.space, _changed(list(asked.change)))
    said = {name: spelled(asked, name) for name in request_of(asked).given}
    read = options_read(given, asked.method, said)
    again = {"again_s": _again_s(asked.again)} if "again" in read else {}
    how, top = how_to_search(asked, read, trust=asked.trust, **again)
    return SearchInputs(given, how, top)


def deployment_inputs(asked: SearchDeployment) -> SearchInputs:
    """The space that a file of kind `deployment` would have."""
    from etude.decide.search import options_read
    from etude.decide.search.request import SpaceFile

    keys: dict[str, Any] = {"model": asked.model, "slo": asked.slo}
    if not asked.price:
        raise UsageError("no system has a price", where="--price", hint="--price dgx-h100=2.5 --price dgx-a100=1.3")
    keys |= {"prices": _prices_by_system(asked.price)}
    keys |= {axis: [v.strip() for v in values.split("|")] for axis, values in _over(asked.over)}
    if asked.requests:
        replaces(asked, "requests", "count", "prompt", "output_tokens")
        keys |= {"requests": asked.requests, "first": asked.first}
    else:
        keys |= {"count": asked.count, "prompt": asked.prompt, "output": asked.output_tokens}
    keys |= {name: getattr(asked, name) for name in ("rate", "most", "part", "score", "stack", "cache")}
    given = SpaceFile(kind="deployment", keys=keys, where="etude search deployment")
    how, top = how_to_search(asked, options_read(given, asked.method))
    return SearchInputs(given, how, top)


def _prices_by_system(texts: Sequence[str]) -> dict[str, float]:
    return {name: _number(value) for name, value in (_pair(text, "--price", "dgx-h100=2.5") for text in texts)}


def _over(text: str) -> list[tuple[str, str]]:
    pairs = [_pair(part, "--over", "tp=1|2,split=none|1:1") for part in text.split(",") if part.strip()]
    return [(axis.replace("-", "_"), values) for axis, values in pairs]


def plan_inputs(asked: SearchPlans) -> SearchInputs:
    from etude.decide.search.plans import parse_over, space_of

    if not only_one(asked, "model", "hf"):
        hint = "etude search llama3-8b --gpus 16 --system dgx-h100"
        raise UsageError("neither a model nor a space is given", hint=hint)
    hf = None if asked.hf is None else Path(asked.hf)
    name = asked.model or str(hf / "config.json" if hf and hf.is_dir() else hf)
    over, scores = parse_over(asked.over), [one.strip() for one in asked.score.split(",") if one.strip()]
    limits = dict(_pair(text, "--limit", "memory=80GB") for text in asked.limit)
    system = "" if over.get("system") else asked.system  # an axis has them
    with naming(asked, *OF_SPACE, *given_in(asked.axes)):
        space = space_of(
            model=name, fixed=plan_keys(asked, asked.model), over=over, score=scores, limits=limits, system=system,
            stack=asked.stack, network=asked.network, price=_prices(list(asked.price)),
        )  # fmt: skip
    is_drawn = space.placed or asked.method in ("greedy", "anneal")
    how, top = how_to_search(asked, frozenset({"workers", "ray", "seed"} if is_drawn else {"workers", "ray"}))
    return SearchInputs(space, how, top)


def run(given: SearchInputs, execute: "Execute | None" = None) -> "tuple[Found, SearchInputs]":
    """What was found; `execute` runs commands of a space in this process."""
    from etude.decide.search import kept, solve
    from etude.decide.search.plans import PlanSpace, search_plans

    space, asked = given.space, replace(given.asked, execute=execute)
    if isinstance(space, PlanSpace):
        found = kept(search_plans(space, asked), asked, f"Plans of {space.model}")
    else:
        found = solve(space, asked)
    for line in found.told:
        say(line)
    return found, given


def _pair(text: str, where: str, hint: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key.strip() or not equals or not value.strip():
        raise UsageError(f"`{text}` is not KEY=VALUE", where=where, hint=f"{where} {hint}")
    return key.strip(), value.strip()


def _prices(texts: list[str]) -> Any:
    """One price for all systems, or a price for each system. Raises UsageError if one is not a number."""
    if len(texts) == 1 and "=" not in texts[0]:
        return _number(texts[0])
    return _prices_by_system(texts)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"`{text}` is not a price", where="--price", hint="--price 2.5") from None


def _changed(texts: list[str]) -> dict[str, Any]:
    pairs = (_pair(text, "--set", "score=cost") for text in texts)
    return {key: parse(value, "--set") for key, value in pairs}


def _again_s(text: str) -> float:
    from etude.base.units import parse_time

    return parse_time(text.removeprefix("every=")) / 1e9 if text else 0.0


def reads(result: "tuple[Found, SearchInputs]") -> Iterator[Any]:
    found, given = result
    rows = (found.rows or found.frontier)[: given.top]
    if "axes" in found.more:
        kept = [*found.more["scores"], *found.more["axes"]]
        kept = [*dict.fromkeys([*kept, *(name for name in FIGURES if name in rows[0])])]
        rows = [{name: row[name] for name in kept} for row in rows]
    yield [_shown(row) for row in rows]
    if flags := found.best.get("flags"):
        say(f"best: {flags}")
    for note in found.notes:
        say(note)
    why = "".join(f", {count:,} {reason}" for reason, count in found.pruned.items())
    say(f"{found.space:,} candidates: {found.tried:,} tried{why}")
    if given.asked.out is not None:
        say(f"wrote {given.asked.out / 'index.html'}")


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row with times and bytes formatted in their units, without `flags`."""
    from etude.base.units import format_bytes, format_time

    found: dict[str, Any] = {}
    for name, value in row.items():
        if name.endswith("_ns") and isinstance(value, int):
            found[name.removesuffix("_ns")] = format_time(value)
        elif name.endswith("_bytes") and isinstance(value, int):
            found[name.removesuffix("_bytes")] = format_bytes(value)
        elif name != "flags":
            found[name] = round(value, 4) if isinstance(value, float) else value
    return found


def record(result: "tuple[Found, SearchInputs]") -> dict[str, Any]:
    return result[0].record()


def answer(result: "tuple[Found, SearchInputs]") -> dict[str, Any]:
    """The record with as many rows as a table would have."""
    found, given = result
    made = found.record()
    return made | {name: made[name][: given.top] for name in ("rows", "frontier")}
