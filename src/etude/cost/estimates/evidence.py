"""Evidence: the errors of held-out rows of a figure, as `benchmarks/fit_bands.py` fitted them, and `estimate_of`, which
makes ranges of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from etude.base.figures import figure, parse, read
from etude.cost.estimates.cases import EstimateCase
from etude.cost.estimates.estimate import Estimate, columns
from etude.cost.stacks import generation_of

FEW: Final = 5
"""Rows of a kind below which nothing is known of it, and of a figure."""
BEYOND: Final = 10.0
"""Times the largest, or below the smallest, of the measured cases: from there on nothing is known."""
MORE_DEVICES: Final = 2.0
"""The same of devices: what a step loses with scale is seen only where it was measured."""
WORDS: Final = {
    "recurrent": "models with recurrent layers",
    "encoder": "encoders",
    "encoder_decoder": "encoders with a decoder",
    "vit": "vision transformers",
    "dit": "diffusion transformers",
    "dlrm": "models of recommendations",
    "convnet": "convolutional models",
    "composed": "models of several towers",
    "programs": "programs that never ran",
    "between nodes": "groups over several nodes",
    "dense": "dense models",
    "experts": "mixtures of experts",
    "xla": "models under XLA",
    "eager": "models in eager PyTorch",
    "adapters": "adapters and frozen models",
    "train_step": "training steps",
    "decode": "passes of one token each",
    "prefill": "passes over prompts",
}
"""Kinds of cases as a reader calls them."""
SAID: Final = {
    "stack": "no stack named",
    "fp8": "8-bit products",
    "fp4": "4-bit products",
    "scale": "more devices than most rows",
    "unstated": "settings assumed",
    "batch": "a large batch",
}


NARROW: Final = ("fp8", "fp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorQuantiles:
    """Quantiles of |ln(measured / predicted)|, over the width of the case that `widths` gives."""

    rows: int = figure("count", "held-out rows")
    sources: int = figure("count", "sources that they are from")
    half: float = figure("number", "half are below", zero=True)
    most: float = figure("number", "nine of ten are below", zero=True)
    pooled: bool = figure("flag", "of few rows or sources: the quantiles are those of all such kinds", False)
    pool_rows: int = figure("count", "rows behind the quantiles, of a pooled kind", 0, zero=True)
    pool_sources: int = figure("count", "sources that those are from", 0, zero=True)
    devices: tuple[str, ...] = figure(
        "list", "devices of the rows behind the quantiles; none: all of the figure", (), of=str
    )
    most_gpus: float = figure("number", "devices of the largest case; 0: not looked at", 0.0, zero=True)
    least_elements: float = figure("number", "elements of the smallest case; 0: not looked at", 0.0, zero=True)
    most_elements: float = figure("number", "elements of the largest case; 0: not looked at", 0.0, zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of the errors of a figure."""

    about: str = figure("text", "which rows")
    kinds: Mapping[str, ErrorQuantiles] = figure("map of one", "by kind of case", of=ErrorQuantiles)
    widths: Mapping[str, float] = figure("map of number", "growth of ln(width) with each distance", {}, zero=True)
    devices: Mapping[str, float] = figure("map of number", "factor on the width of rows of a device, held near 1", {})
    fitted: tuple[str, ...] = figure("list", "devices that the predictor was fitted to", (), of=str)
    seen: tuple[str, ...] = figure("list", "devices of the rows", (), of=str)

    precisions: tuple[str, ...] = figure("list", "of products in 8 and 4 bits: `fp8 on DEVICE` of the rows", (), of=str)

    def unknown(self, case: EstimateCase, kind: str) -> str:
        """Of what no row says anything, in a case of this kind: `on Google TPU v5e`; empty: it is like some."""
        its = self.kinds[kind]
        if not _has_like(case.device, self.seen):
            return f"on {case.device}"
        if its.devices and not _has_like(case.device, its.devices):
            return f"of {words_of(case.kind)} on {case.device}"
        narrow = [one.partition(" on ")[2] for one in self.precisions if one.startswith(f"{case.precision} on ")]
        if case.precision in NARROW and self.precisions and not _has_like(case.device, narrow):
            return f"of {SAID[case.precision]} on {case.device}"
        if its.most_gpus and case.gpus > MORE_DEVICES * its.most_gpus:
            return f"of {words_of(case.kind)} on {case.gpus:,} devices: the most measured are {its.most_gpus:,.0f}"
        if case.elements and its.least_elements and case.elements < its.least_elements / BEYOND:
            return f"of {words_of(case.kind)} of so small products, where the host decides"
        if case.elements and its.most_elements and case.elements > BEYOND * its.most_elements:
            return f"of {words_of(case.kind)} of so large products"
        return ""

    def kind(self, wanted: str) -> str | None:
        """The kind with enough rows that a case is of: `dense, static batch`, or else `dense`."""
        tried = (wanted, wanted.partition(", ")[0])
        return next((one for one in tried if one in self.kinds and self.kinds[one].rows >= FEW), None)

    def width(self, case: EstimateCase) -> float:
        """Of the errors of a case, relative to one at no distance."""
        known = case.distances(self.fitted)
        grown = math.exp(sum(self.widths.get(name, 0.0) * value for name, value in known.items()))
        return self.devices.get(case.device, 1.0) * grown


@cache
def evidence() -> dict[str, Evidence]:
    """By figure."""
    where = "bands.yaml"
    given = parse(files("etude.cost.estimates").joinpath(where).read_text("utf-8"), where)
    return {name: read(Evidence, value, f"{where}: {name}") for name, value in given["figures"].items()}


def estimate_of(value: float, case: EstimateCase, known: Mapping[str, Evidence] | None = None) -> Estimate:
    """The value with the ranges of such cases; without any where no held-out row is like it."""
    found = (evidence() if known is None else known).get(case.figure)
    kind = None if found is None else found.kind(case.kind)
    if found is None or kind is None:
        return no_evidence(value, f"for the {case.figure} of {words_of(case.kind)} on {case.device}", case)
    unknown, quantiles = found.unknown(case, kind), found.kinds[kind]
    if unknown:
        return no_evidence(value, f"for the {case.figure} {unknown}", case)
    width = found.width(case)
    return Estimate(
        value=value, half=quantiles.half * width, most=quantiles.most * width, basis=_basis(found, kind, case)
    )


def no_evidence(value: float, about: str, case: EstimateCase | None = None) -> Estimate:
    """A value of which no held-out row says anything."""
    basis = {"evidence": False, "rows": 0, "sources": 0, "text": f"no evidence {about}"}
    basis |= {} if case is None else {"case": case.record()}
    return Estimate(value=value, half=None, most=None, basis=basis)


def without_evidence(abouts: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The columns of figures of which no held-out row says anything: `no evidence for the goodput of a fleet`."""
    return columns({name: no_evidence(0.0, f"for {about}") for name, about in abouts.items()})


def _has_like(device: str, others: Collection[str]) -> bool:
    """The device, or one of its generation, is among others."""
    generation = generation_of(device)
    return device in others or (bool(generation) and generation in map(generation_of, others))


def words_of(kind: str) -> str:
    head, *more = kind.split(", ")
    return ", ".join([WORDS.get(head, head), *more])


def _counted(rows: int, sources: int) -> str:
    return f"{rows} held-out rows of {sources} source{'' if sources == 1 else 's'}"


def _basis(found: Evidence, kind: str, case: EstimateCase) -> dict[str, Any]:
    quantiles = found.kinds[kind]
    distances = case.distances(found.fitted)
    far = [SAID[name] for name in distances if name in SAID]
    if kind != case.kind:
        far.append(f"too few rows of {words_of(case.kind)}")
    if case.device not in found.seen:
        far.append(f"no row on {case.device}: on others of its generation")
    elif case.device not in found.fitted:
        far.append(f"nothing was fitted on {case.device}")
    text = f"{_counted(quantiles.rows, quantiles.sources)}, {found.about}: {words_of(kind)}"
    if quantiles.pooled:
        text += (
            f", pooled with other kinds of few rows or sources: {_counted(quantiles.pool_rows, quantiles.pool_sources)}"
        )
    return {
        "evidence": True,
        "rows": quantiles.rows,
        "sources": quantiles.sources,
        "pooled": quantiles.pooled,
        **({"pool_rows": quantiles.pool_rows, "pool_sources": quantiles.pool_sources} if quantiles.pooled else {}),
        "width": round(found.width(case), 3),
        "distances": {name: round(value, 3) for name, value in distances.items()},
        "text": "; ".join([text, *far]),
        "case": case.record(),
    }
