"""Loads: how unequally tokens choose their experts, in each layer with experts; see train/routing.py.

`zipf:1.2` (the i-th fullest expert has i ** -1.2, in a random order for each layer), `dirichlet:0.5` (random shares for
each layer), `3,1,1,1` (for each expert, in every layer), or a CSV file with a column `load` and, if layers differ,
`layer`, one row per expert in order.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from etude.base.errors import ClusterError, UsageError
from etude.base.grammar import line
from etude.kernels.arrays import F64

DRAWN = ("zipf", "dirichlet")
HINT = "zipf:1.2, dirichlet:0.5, 3,1,1,1 or a .csv file"


def check(text: str) -> None:
    """Raises ClusterError if the text is ambiguous."""
    if text and not text.lower().endswith(".csv"):
        _read(text)


def _read(text: str) -> tuple[str, list[float]]:
    """A distribution and its figure, or "" and the load of each expert."""
    whole = line(text, "loads of experts", HINT, ClusterError)
    kind, figure = whole.cut(":")
    if figure is not None:
        return kind.choice(DRAWN, "distribution"), [float(figure.figure("number", zero=kind.text == "zipf"))]
    values = [part.number() for part in whole.split(",")]
    if not sum(values):
        raise whole.wrong("all loads are 0")
    return "", values


def loads_of(text: str, experts: int, layers: int, seed: int) -> F64:
    """Tokens of each expert over the mean, layers x experts."""
    if text.lower().endswith(".csv"):
        shares = _table(Path(text), experts, layers)
    else:
        kind, values = _read(text)
        if kind:
            shares = np.stack([_drawn(kind, values[0], experts, [seed, layer]) for layer in range(layers)])
        elif len(values) != experts:
            raise UsageError(f"{len(values)} loads for {experts} experts", hint="give one load per expert")
        else:
            shares = np.tile(values, (layers, 1))
    total = shares.sum(axis=1, keepdims=True)
    if (total <= 0).any():
        raise UsageError("loads of experts: all loads of a layer are 0", where=text)
    return np.asarray(shares / total * experts, np.float64)


def _drawn(kind: str, figure: float, experts: int, seed: list[int]) -> F64:
    random = np.random.default_rng(seed)
    if kind == "dirichlet":
        return random.dirichlet(np.full(experts, figure))
    return random.permutation(np.arange(1, experts + 1) ** -figure)


def _table(path: Path, experts: int, layers: int) -> F64:
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        found = [(int(row.get("layer") or 0), float(row["load"])) for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error, KeyError, ValueError, TypeError) as problem:
        why = "no column `load`" if isinstance(problem, KeyError) else getattr(problem, "strerror", None) or problem
        raise UsageError(
            f"cannot be read: {why}", where=str(path), hint="columns: load, and optionally layer"
        ) from None
    by_layer: dict[int, list[float]] = {}
    for layer, load in found:
        if not 0 <= load < np.inf:
            raise UsageError(f"a load of {load} is not valid", where=str(path))
        by_layer.setdefault(layer, []).append(load)
    wanted = range(layers) if any("layer" in row for row in rows[:1]) else [0]
    for layer in wanted:
        if len(by_layer.get(layer, ())) != experts:
            given = f"{len(by_layer.get(layer, ()))} loads in layer {layer}, but the model has {experts} experts"
            raise UsageError(given, where=str(path), hint="layers with experts count from 0")
    return np.array([by_layer[layer] for layer in wanted]).repeat(layers // len(wanted), axis=0)
