"""Rows of published serving measurements, predicted by the loop: a static batch, a closed loop of users, requests at a
rate, or all at once.

Columns: model, gpu_type, gpus, tp, pp, ep, dp, weight_precision, kv_precision, engine, input_tokens, output_tokens,
lengths, load, concurrency, request_rate, max_batch, num_requests; measured are output_tokens_per_s, ttft_s, ttft_p99_s,
tpot_s, tpot_p99_s, itl_s, batch_latency_s, request_latency_s, power_w. A cell may be empty; `assumed` says what is
taken instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.machine import System, open_system
from etude.make.generate.model import Model, open_model, stored_as
from etude.make.generate.passes import held_by
from etude.steps.measured import gpu_system
from etude.world.serve.deployment import Deployment, deployed, replica_plan
from etude.world.serve.engine import Engine
from etude.world.serve.estimates import AT_ONCE, load_of
from etude.world.serve.measured.engines import UNTUNED, EngineRules, bench_limits, engine_of
from etude.world.serve.measured.systems import number, text, whole
from etude.world.serve.requests import Requests, requests_of
from etude.world.serve.results import request_times, summary
from etude.world.serve.serving import Group, Served, serve
from etude.world.serve.stacks import ServingStack
from etude.world.serve.workloads import poisson

COLUMNS: Final = ("model", "gpu_type", "gpus", "load", "input_tokens", "output_tokens")
PRECISIONS: Final = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "fp8": "fp8", "fp4": "fp4", "nvfp4": "fp4",
}  # fmt: skip
MXFP4: Final = 4.25 / 16
"""Bits of a weight in mxfp4, with its scales, over those in 16 bits."""
INT4: Final = 4.5 / 16
"""... in 4-bit integers, with a scale of 16 bits for 32 of them."""
PACKED: Final = {"mxfp4": MXFP4, "int4": INT4, "w4a16": INT4, "awq": INT4, "gptq": INT4}
ROUNDS: Final = 10
"""Requests of a user of a closed loop, where their number is not stated."""
REQUESTS: Final = {256: 30_000, 2_500: 3_000, 9_216: 1_500}
FEWEST: Final = 1_000
"""Requests that are all there at the start, where their number is not stated: by their longest prompt and answer, and
for longer ones; as TensorRT-LLM measures (its performance pages, "Preparing a Dataset"), on however many GPUs."""
AT_A_RATE: Final = 2_000
"""Requests that arrive at a rate, where their number is not stated."""
FULL: Final = 2048
"""Most sequences at the highest load."""
MEASURED: Final = {
    "output_tokens_per_s": "tokens_per_s", "ttft_s": "ttft_s", "ttft_p99_s": "ttft_p99_s", "tpot_s": "tpot_s",
    "tpot_p99_s": "tpot_p99_s", "itl_s": "itl_s", "batch_latency_s": "latency_s", "request_latency_s": "latency_s",
    "power_w": "power_w",
}  # fmt: skip
"""Column -> figure."""
Row = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    measured: dict[str, float]
    predicted: dict[str, float]
    assumed: list[str]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Load:
    """Requests, and the rules of the engine that they need."""

    requests: Requests
    engine: Engine
    static: bool = False
    """One batch: its first token is that of the last request."""


def is_published(columns: Iterable[str]) -> bool:
    return set(COLUMNS) <= set(columns)


def predicted_row(
    row: Row, *, system: str = "", stack: str | ServingStack = "", ops: Path | None = None
) -> PublishedRow:
    """`system`, `stack` and `ops` override what follows from the row."""
    said: list[str] = []
    measured = {figure: number(row, column) for column, figure in MEASURED.items() if row.get(column)}
    if not measured:
        raise UsageError("no figure was measured", hint=f"one of {', '.join(MEASURED)}")
    if row.get("disaggregated"):
        raise UsageError("separate workers for prefill and decode are not predicted from a row")
    on = open_system(system) if system else gpu_system(text(row, "gpu_type"))
    said += [] if system else [f"system {on.name} for the GPU `{row['gpu_type']}`"]
    at_once = load_of(text(row, "load"), row.get("request_rate", "")) == AT_ONCE
    rules = engine_of(row.get("engine", ""), row.get("engine_version", ""), on.device, at_once=at_once)
    model = _model(row, said)
    precision, packed = _precision(row, model, said)
    split = _split(row, model, rules, said)
    load = _load(row, split.copies, rules, said)
    shared = split.ep > split.tp
    engine = replace(load.engine, barrier=True) if shared and split.copies > 1 else load.engine
    kv_dtype = _kv_dtype(row, rules, precision if packed == 1.0 else _packed_kv(on), said)
    if rules.benched and not row.get("max_batch"):
        engine = _benched(engine, load.requests, model, on, split, "" if packed < 1.0 else precision, kv_dtype)
    said += _of_engine(row, rules, engine, stack)
    plan = replica_plan(model, split.tp, ep=split.tp if shared else split.ep, precision=precision)
    placed = deployed(
        model, plan, on, engine, stack=stack or rules.stack, ops=ops, groups=split.copies if shared else 1,
        kv_dtype=kv_dtype, packed=packed, pp=split.pp, share=rules.share,
    )  # fmt: skip
    found = _served(load, engine, placed, split)
    figures = _figures(found, static=load.static)
    return PublishedRow(measured=measured, predicted={k: figures[k] for k in measured if k in figures}, assumed=said)


def _model(row: Row, said: list[str]) -> Model:
    """By its id, or by its name in words (`LLaMA v3.1 8B`)."""
    model = _named(text(row, "model"))
    said += [f"model {model.name}, {model.assumed}"] if model.assumed else []
    return model


@cache
def _named(name: str) -> Model:
    plain = re.sub(r"[ -]v?(?=\d+(\.\d+)?[ -])", "", name.lower(), count=1).replace(" ", "-")
    bare = re.sub(r"(?<=\d)\.[1-9](?=-\d+b)", "", plain)  # 3.1 and 3.3 have the shapes of 3
    for one in (name, plain, bare, f"-/{plain}"):
        try:
            return open_model(one)
        except UsageError:
            continue
    return open_model(name)


def _precision(row: Row, model: Model, said: list[str]) -> tuple[str, float]:
    """The precision of products, and the bytes of the experts' weights over those in it."""
    stated = row.get("weight_precision", "").lower()
    if not stated or "stated" in stated:
        stated = stored_as(row["model"]) or "bf16"
        said.append(f"precision {stated}")
    if "gpt-oss" in model.name.lower() and stated in ("fp4", "fp8"):
        said.append(f"{stated}: experts in mxfp4, as they are published, and the rest in 16 bits")
        stated = "mxfp4"
    if stated in PRECISIONS:
        return PRECISIONS[stated], 1.0
    if stated in PACKED and model.experts:
        said.append(f"{stated}: experts take {16 * PACKED[stated]:g} bits per weight, the rest is bf16")
        return "bf16", PACKED[stated]
    dense = " of a model without experts" if stated in PACKED else ""
    raise UsageError(f"weights in {stated}{dense} are not predicted", hint=f"known: {', '.join(PRECISIONS)}")


def _packed_kv(on: System) -> str:
    """The precision that keys and values follow where experts are packed: TensorRT-LLM's options of gpt-oss have 8 bits
    on devices with products of 4."""
    return "fp4" if "fp4" in on.device.peak_flop_per_s else "bf16"


def _kv_dtype(row: Row, rules: EngineRules, precision: str, said: list[str]) -> str:
    if row.get("kv_precision"):
        return row["kv_precision"]
    if rules.kv_as_weights and precision in ("fp8", "fp4"):
        said.append("keys and values in fp8, as checkpoints in 8 or 4 bits have them")
        return "fp8"
    said.append("keys and values in the precision of the computation")
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSplit:
    """How the GPUs of a row share the work."""

    copies: int
    tp: int
    pp: int
    ep: int
    """Ranks over which experts are spread."""


def _split(row: Row, model: Model, rules: EngineRules, said: list[str]) -> RankSplit:
    gpus, copies, pp = whole(row, "gpus"), whole(row, "dp", 1), whole(row, "pp", 1)
    ranks = gpus // pp
    if rules.shared_experts and model.experts and copies == 1 < ranks and not row.get("ep") and not gpus % pp:
        said.append(f"each of {ranks} ranks has requests of its own, and experts are spread over all (attention DP)")
        return RankSplit(copies=ranks, tp=1, pp=pp, ep=ranks)
    if gpus % (copies * pp):
        raise UsageError(f"{copies} copies of {pp} stages on {gpus} GPUs")
    tp = gpus // (copies * pp)
    if number(row, "tp", 0) != tp:
        said.append(f"tensor parallel {tp}: all GPUs of a stage of a copy")
    said += [] if row.get("dp") else ["one copy of the model"]
    ranks = copies * tp
    ep = min(whole(row, "ep", 1), ranks) if model.experts else 1
    if model.experts and not row.get("ep"):
        said.append("each expert is split over the ranks")
    if ep not in (1, tp, ranks):
        raise UsageError(f"experts spread over {ep} of {ranks} GPUs of a stage")
    if pp > 1:
        said.append(f"{pp} stages of layers: requests in {pp} groups that follow one another through them")
    return RankSplit(copies=copies, tp=tp, pp=pp, ep=ep)


def _load(row: Row, copies: int, rules: EngineRules, said: list[str]) -> Load:
    prompt, output = round(number(row, "input_tokens")), max(round(number(row, "output_tokens")), 1)
    kind, users = text(row, "load"), whole(row, "concurrency", 0) if row.get("concurrency") else 0
    own = _engine(rules, prompt)
    if kind == "static batch":
        batch = whole(row, "max_batch", users or 1)
        said.append("prompts whole and before tokens out, as in a static batch")
        engine = replace(
            own,
            chunked=False,
            max_num_batched_tokens=max(own.max_num_batched_tokens, prompt),
            max_num_seqs=max(own.max_num_seqs, batch),
        )
        return Load(requests=_equal(batch, prompt, output), engine=engine, static=True)
    if kind == "closed loop":
        if not users:
            raise UsageError("a closed loop without `concurrency`")
        count = _count(row, ROUNDS * users, said)
        lengths = _lengths(row, count, prompt, output, said)
        parents = [[i - users] if i >= users else [] for i in range(count)]
        requests = requests_of(np.zeros(count, np.int64), *lengths, parents=parents)
        said.append("a user sends the next request as soon as the last is answered")
        return Load(requests=requests, engine=replace(own, max_num_seqs=max(own.max_num_seqs, -(-users // copies))))
    if row.get("request_rate"):
        count = _count(row, AT_A_RATE, said)
        said.append("requests arrive at random (Poisson), all of the mean lengths")
        return Load(requests=poisson(number(row, "request_rate"), count, prompt, output), engine=own)
    if "at once" not in kind:
        raise UsageError(f"a load of `{kind}` is not predicted")
    usual = next((count for most, count in REQUESTS.items() if prompt + output <= most), FEWEST)
    count = _count(row, usual, said)
    return Load(requests=_equal(count, prompt, output), engine=replace(own, max_num_seqs=whole(row, "max_batch", FULL)))


def _benched(
    engine: Engine, requests: Requests, model: Model, on: System, split: RankSplit, precision: str, kv_dtype: str
) -> Engine:
    """With the limits of a pass of its bench; `precision`: of weights, none if it has no rule for them."""
    prompt, output = int(requests.prompt.max()), int(requests.output.max())
    sequences, tokens = UNTUNED[0], max(UNTUNED[1], prompt + UNTUNED[0])
    if precision:
        params = held_by(model, replica_plan(model, 1), 1).weights_bytes / 2
        sequences, tokens = bench_limits(
            model, params, on.device, precision=precision, kv_bytes=1.0 if kv_dtype == "fp8" else 2.0,
            ranks=split.copies * split.tp, pp=split.pp, prompt=prompt, output=output,
        )  # fmt: skip
    return replace(engine, max_num_seqs=sequences, max_num_batched_tokens=tokens, cut_prompts=False)


def _engine(rules: EngineRules, prompt: int) -> Engine:
    most = rules.max_num_batched_tokens if rules.mixed else max(rules.max_num_batched_tokens, prompt)
    return Engine(
        chunked=rules.mixed, max_num_batched_tokens=most, reserve=rules.reserve, whole_prompt=not rules.reserve
    )


def _count(row: Row, usual: int, said: list[str]) -> int:
    if row.get("num_requests"):
        return whole(row, "num_requests")
    said.append(f"{usual:,} requests")
    return usual


def _equal(count: int, prompt: int, output: int) -> Requests:
    return requests_of(np.zeros(count, np.int64), np.full(count, prompt), np.full(count, output))


def _lengths(row: Row, count: int, prompt: int, output: int, said: list[str]) -> tuple[Any, Any]:
    """All equal, or uniform in the part of the stated ones that `lengths` says (`0.8..1.0`)."""
    found = re.search(r"(\d\.\d+)\.\.(\d\.\d+)", row.get("lengths", ""))
    if found is None:
        if row.get("lengths", "fixed") != "fixed":
            said.append(f"all requests have the stated lengths ({row['lengths']})")
        return np.full(count, prompt), np.full(count, output)
    random, low, high = np.random.default_rng(0), float(found[1]), float(found[2])
    said.append(f"lengths drawn uniformly from {low:g} to {high:g} of the stated ones")
    return tuple(np.maximum(np.rint(random.uniform(low, high, count) * n), 1).astype(int) for n in (prompt, output))  # type: ignore[return-value]


def _of_engine(row: Row, rules: EngineRules, engine: Engine, stack: str | ServingStack) -> list[str]:
    named = row.get("engine") or "none"
    said = [] if stack else [f"stack {rules.stack} for the engine `{named}`"]
    how = "prompts share passes with tokens out" if engine.chunked else "prompts before tokens out"
    return [
        *said,
        f"rules of the engine: {rules.name}'s, {how}, max_num_seqs {engine.max_num_seqs:,}, "
        f"max_num_batched_tokens {engine.max_num_batched_tokens:,}, {rules.share.fraction:.0%} of the memory"
        + (" that weights leave" if rules.share.of_rest else ""),
    ]


def _served(load: Load, engine: Engine, placed: Deployment, split: RankSplit) -> Served:
    group = Group(placed.cost, split.copies * split.pp, blocks=placed.blocks, energy=placed.energy,
                  token_bytes=placed.token_bytes, error=placed.error)  # fmt: skip
    # Groups that wait for one another at a barrier are on different stages, each for as long as the longest.
    stages = (1.0,) if engine.barrier else placed.stages
    return serve(load.requests, engine, [group], router="least", caching=placed.caching,
                 token_bytes=float(placed.token_bytes * split.tp), stages=stages)  # fmt: skip


def _figures(served: Served, *, static: bool) -> dict[str, float]:
    """Means over requests and their tails; of a static batch the first token and the end of the last request."""
    times, whole_run = request_times(served), summary(served)
    ttft, tpot, latency = times["ttft_s"], times["tpot_s"], times["latency_s"]
    further = np.maximum(served.requests.output - 1, 0)
    duration = float(whole_run["duration_s"])
    found = {
        "ttft_s": float(ttft.max() if static else ttft.mean()),
        "ttft_p99_s": float(np.quantile(ttft, 0.99)),
        "latency_s": float(latency.max() if static else latency.mean()),
        "tokens_per_s": float(served.requests.output.sum() / duration),
    }
    if further.any():
        found |= {
            "tpot_s": float(np.nanmean(tpot)),
            "tpot_p99_s": float(np.nanquantile(tpot, 0.99)),
            "itl_s": float((latency - ttft).sum() / further.sum()),
        }
    if whole_run["energy_j"] is not None:
        found["power_w"] = whole_run["energy_j"] / duration
    return found


def has_experts(row: Row) -> bool:
    """Whether the model of a row is a mixture of experts."""
    return bool(_named(text(row, "model")).experts)
