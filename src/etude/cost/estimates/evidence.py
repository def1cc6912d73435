"""Evidence: the errors of held-out rows of a figure, as `benchmarks/fit_bands.py` fitted them, and `estimate_of`, which
makes ranges of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from etude.base.figures import figure, parse, read
from etude.cost.estimates.cases import EstimateCase
from etude.cost.estimates.estimate import Estimate
from etude.cost.stacks import generation_of

FEW: Final = 5
"""Rows of a kind below which nothing is known of it, and of a figure."""
WORDS: Final = {
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorQuantiles:
    """Quantiles of |ln(measured / predicted)|, over the width of the case that `widths` gives."""

    rows: int = figure("count", "held-out rows")
    sources: int = figure("count", "sources that they are from")
    half: float = figure("number", "half are below", zero=True)
    most: float = figure("number", "nine of ten are below", zero=True)
    pooled: bool = figure("flag", "of few rows of its own: the quantiles are those of all kinds", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of the errors of a figure."""

    about: str = figure("text", "which rows")
    kinds: Mapping[str, ErrorQuantiles] = figure("map of one", "by kind of case", of=ErrorQuantiles)
    widths: Mapping[str, float] = figure("map of number", "growth of ln(width) with each distance", {}, zero=True)
    devices: Mapping[str, float] = figure("map of number", "factor on the width of rows of a device, held near 1", {})
    fitted: tuple[str, ...] = figure("list", "devices that the predictor was fitted to", (), of=str)
    seen: tuple[str, ...] = figure("list", "devices of the rows", (), of=str)

    def knows(self, device: str) -> bool:
        """Rows are of the device, or of another of its generation."""
        generation = generation_of(device)
        return device in self.seen or (bool(generation) and generation in map(generation_of, self.seen))

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
        return no_evidence(value, f"for the {case.figure} of {_words(case.kind)} on {case.device}", case)
    quantiles = found.kinds[kind]
    if not found.knows(case.device):
        return no_evidence(value, f"for the {case.figure} on {case.device}", case)
    width = found.width(case)
    return Estimate(
        value=value, half=quantiles.half * width, most=quantiles.most * width, basis=_basis(found, kind, case)
    )


def no_evidence(value: float, about: str, case: EstimateCase | None = None) -> Estimate:
    """A value of which no held-out row says anything."""
    basis = {"evidence": False, "rows": 0, "sources": 0, "text": f"no evidence {about}"}
    basis |= {} if case is None else {"case": case.record()}
    return Estimate(value=value, half=None, most=None, basis=basis)


def _words(kind: str) -> str:
    head, *more = kind.split(", ")
    return ", ".join([WORDS.get(head, head), *more])


def _basis(found: Evidence, kind: str, case: EstimateCase) -> dict[str, Any]:
    quantiles = found.kinds[kind]
    distances = case.distances(found.fitted)
    far = [SAID[name] for name in distances if name in SAID]
    if kind != case.kind:
        far.append(f"too few rows of {_words(case.kind)}")
    if case.device not in found.seen:
        far.append(f"no row on {case.device}: on others of its generation")
    elif case.device not in found.fitted:
        far.append(f"nothing was fitted on {case.device}")
    of = "all kinds pooled, " if quantiles.pooled else ""
    sources = f"{quantiles.sources} source{'' if quantiles.sources == 1 else 's'}"
    text = f"{quantiles.rows} held-out rows of {sources}, {of}{found.about}: {_words(kind)}"
    return {
        "evidence": True,
        "rows": quantiles.rows,
        "sources": quantiles.sources,
        "pooled": quantiles.pooled,
        "width": round(found.width(case), 3),
        "distances": {name: round(value, 3) for name, value in distances.items()},
        "text": "; ".join([text, *far]),
        "case": case.record(),
    }
