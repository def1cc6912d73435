"""The ranges of a stream's figures: of means, of percentiles, of tokens per second and of energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import exp, log, log1p
from typing import Any, Final

from etude.cost.estimates import Estimate, columns, no_evidence
from etude.cost.stacks import Band
from etude.machine import open_system
from etude.world.serve.asked.service import ModelService
from etude.world.serve.deployment import device_name
from etude.world.serve.estimates import FIGURES, RATE, served_estimate, serving_case
from etude.world.serve.pools import Pool
from etude.world.serve.pools.groups import ReplicaRole
from etude.world.serve.results import Limits, kept_limits
from etude.world.serve.serving import Served
from etude.world.serve.stacks import OwnErrors, own_errors

RANGES: Final = {
    "ttft_s": "ttft_s",
    "tpot_s": "tpot_s",
    "itl_s": "itl_s",
    "output_tokens_per_s": "tokens_per_s",
    "energy_j": "energy_j_per_token",
}
"""Figure of a stream -> what errors are kept of. Of times it is the mean over requests, and percentiles have ranges as
wide. The time of a request is made of those of its first and its further tokens."""
LATENCY: Final = "latency_s"
PROGRAMS: Final = "programs"
MEAN: Final = "mean"


def with_ranges(service: ModelService, one: dict[str, Any], served: Served | None = None) -> dict[str, Any]:
    """The summary of a stream with `low`, `high`, `low_50`, `high_50` and `basis` of its figures; a percentile is
    `ttft_s.p99`. `served`: its requests, by which it is known how many are within limits at the ends."""
    found: dict[str, Estimate] = {}
    for name in (*RANGES, LATENCY):
        values = one[name] if isinstance(one[name], dict) else {MEAN: one[name]}
        if values[MEAN] is None:
            continue
        mean = _of_tokens(one, found) if name == LATENCY else _estimate(service, one, RANGES[name], values[MEAN])
        found[name] = mean
        found |= {f"{name}.{key}": _as_wide(mean, value) for key, value in values.items() if key != MEAN}
    ranged = one | columns(found)
    return ranged if served is None else _with_limits(_below_arrivals(ranged, served), served, service.limits)


def _of_tokens(one: Mapping[str, Any], found: Mapping[str, Estimate]) -> Estimate:
    """The mean time of a request: its first token and all further ones are at the same ends of their ranges, so that it
    is within its own wherever both are."""
    first, mean = found["ttft_s"], one[LATENCY][MEAN]
    further = found.get("tpot_s", first)
    for part in (first, further):
        if part.most is None:
            return replace(part, value=mean)
    waits = min(one["ttft_s"][MEAN], mean)

    def width(of_first: float | None, of_further: float | None) -> float:
        return log((waits * exp(of_first or 0.0) + (mean - waits) * exp(of_further or 0.0)) / mean)

    text = f"first and further tokens at the same ends of their ranges: {further.basis['text']}"
    return Estimate(
        value=mean,
        half=width(first.half, further.half),
        most=width(first.most, further.most),
        basis={**further.basis, "text": text},
    )


def _below_arrivals(ranged: dict[str, Any], served: Served) -> dict[str, Any]:
    """Tokens come out no faster than requests for them come in."""
    name, last_s = "output_tokens_per_s", float(served.requests.arrival_ns.max()) / 1e9
    if last_s <= 0.0 or ranged["high"].get(name) is None:
        return ranged
    most = ranged[name] * max(ranged["duration_s"] / last_s, 1.0)
    ends = {end: {**ranged[end], name: min(ranged[end][name], most)} for end in ("high", "high_50")}
    return {**ranged, **ends}


ENDS: Final = (("low", "high"), ("low_50", "high_50"))
"""Of nine of ten, and of the half."""
WITHIN: Final = ("within_limits", "goodput_rps")
"""What depends on limits: a part of the requests, and these in a second."""


def _with_limits(one: dict[str, Any], served: Served, limits: Limits) -> dict[str, Any]:
    """The part of the requests within limits, and these in a second, if all times are at the ends of their ranges."""
    named = sorted({name for its in limits.values() for name in its if one.get(name)})
    known = [one["basis"][name]["evidence"] for name in named]
    if not named or not all(known):
        why = "for requests within limits" + ("" if named else ", of which none was given")
        added = columns({name: no_evidence(one[name], why) for name in WITHIN})
    else:
        text = f"{', '.join(named)} at the ends of their ranges: {one['basis'][named[0]]['text']}"
        basis = {**one["basis"][named[0]], "text": text}
        added = {"basis": dict.fromkeys(WITHIN, basis)}
        for ends in ENDS:
            parts = within_at(one, served, limits, ends)
            scale = one["goodput_rps"] / one["within_limits"] if one["within_limits"] else 0.0
            added |= {end: {WITHIN[0]: part, WITHIN[1]: (part or 0.0) * scale} for end, part in parts.items()}
    return one | {name: {**one[name], **of} for name, of in added.items()}


def within_at(
    record: Mapping[str, Any], served: Served, limits: Limits, ends: tuple[str, str] = ENDS[0]
) -> dict[str, float | None]:
    """The part of the requests within limits if all times are at the far end of their ranges (the first of `ends`), and
    at the near one; None where one of these is not known."""
    widths = {name: width_of(record, name, ends[1]) for its in limits.values() for name in its if record[name]}
    if any(width is None for width in widths.values()):
        return dict.fromkeys(ends)
    found: dict[str, float | None] = {}
    for end, sign in zip(ends, (-1, 1), strict=True):
        moved = {
            tier: {name: limit * exp(sign * (widths.get(name) or 0.0)) for name, limit in its.items()}
            for tier, its in limits.items()
        }
        found[end] = float(kept_limits(served, moved).mean())
    return found


def width_of(record: Mapping[str, Any], name: str, end: str = "high") -> float | None:
    """ln of an end of the range of a figure over its value; None: no evidence."""
    high, value = record[end].get(name), record[name]
    value = value["mean"] if isinstance(value, Mapping) else value
    return None if high is None else log(high / value)


def _as_wide(mean: Estimate, value: float) -> Estimate:
    """A percentile, whose errors were measured too seldom."""
    text = mean.basis["text"] + ("" if mean.most is None else "; as wide as that of the mean")
    return replace(mean.at(value), basis={**mean.basis, "text": text})


def _unmeasured(pools: Sequence[Pool], figure: str) -> str:
    """What of the replicas no row was measured with. Of stages there are tokens per second of nine rows, and of no
    other figure any."""
    if any(pool.role is not ReplicaRole.BOTH for pool in pools):
        return "of prompts and tokens out on replicas of their own"
    if len(pools) > 1:
        return "of replicas of several kinds"
    if pools[0].cp > 1:
        return f"of sequences in {pools[0].cp} parts"
    return f"of {pools[0].pp} stages" if pools[0].pp > 1 and figure != "tokens_per_s" else ""


def _own_band(own: OwnErrors | None, model: str, precision: str, ranks: int, figure: str) -> Band | None:
    """What was left of a calibrated stack where this was served; None where it was not."""
    if own is None or own.model not in ("", model) or own.precision not in ("", precision):
        return None
    return own.figures.get("tpot_s" if figure == "itl_s" else figure) if own.ranks in (0, ranks) else None


def _estimate(service: ModelService, one: dict[str, Any], figure: str, value: float) -> Estimate:
    costs, said = service.costs, FIGURES[figure]
    if service.model is None:
        return no_evidence(value, f"for the {said} of {PROGRAMS}")
    if costs.get("ops") or costs.get("stack") == "none":
        how = "by a profile of operators" if costs.get("ops") else "without a software stack"
        return no_evidence(value, f"for the {said} {how}")
    first = service.pools[0]
    if unknown := _unmeasured(service.pools, figure):
        return no_evidence(value, f"for the {said} {unknown}")
    waiting = one["latency_s"]["mean"] * one["requests"] / one["duration_s"] if one["latency_s"] else 0.0
    system = open_system(first.system or service.system)
    case = serving_case(
        figure,
        system.device.name,
        experts=bool(service.model.experts),
        load=RATE,
        precision=str(costs.get("precision", "bf16")),
        gpus=sum(pool.gpus for pool in service.pools),
        batch=waiting,
    )
    pass_s = one["itl_s"]["p50"] if one["itl_s"] and one["itl_s"].get("p50") else 0.0
    stack = str(costs.get("stack", ""))
    calibrated = stack.endswith((".yaml", ".yml"))
    ranks = first.gpus // first.count
    if calibrated and (own := _own_band(own_errors(stack), service.model.name, case.precision, ranks, figure)):
        basis = {"evidence": True, "rows": own.rows, "sources": 1, "text": f"{own.rows} {own.source}"}
        return Estimate(value=value, half=log1p(own.p50), most=log1p(own.p90), basis=basis)
    on = "" if calibrated else device_name(system)  # it was calibrated on a host of its own
    return served_estimate(value, case, device=on, ranks=ranks, pass_s=pass_s)
