"""Measured runs of vLLM and of a reference engine: folders with `meta.json`, or with `configs_*.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from etude.base.errors import FormatError
from etude.decide.score.kind import Item, PredictedRow, ScoreKind, ScoreRequest, check_profile
from etude.decide.score.source import ScoreFile
from etude.world.serve.measured.again import beside_run, measured_run

META: Final = "meta.json"
CONFIGS: Final = "configs_*.json"
RUN: Final = "requests.jsonl"


def predict(item: Item, asked: ScoreRequest) -> PredictedRow:
    folder, config = item.value
    run = measured_run(folder, ops=asked.ops, config=config)
    found = beside_run(run)
    assumed = [*run.assumed, *run.unstated]
    return PredictedRow(measured=found["measured"], predicted=found["predicted"], assumed=assumed)


def _folders(place: Path) -> list[Path]:
    """Folders of runs of vLLM, the place itself among them."""
    return sorted(file.parent for file in place.rglob(META) if (file.parent / RUN).is_file())


def _configs(place: Path) -> list[str]:
    names: list[str] = []
    for path in sorted(place.glob(CONFIGS)):
        try:
            names += [str(one["config"]) for one in json.loads(path.read_text("utf-8"))["configs"]]
        except (ValueError, KeyError, TypeError):
            raise FormatError("is not a list of configurations", path=path) from None
    return names


def _holds(source: ScoreFile) -> bool:
    return source.folder and (any(source.path.glob(CONFIGS)) or bool(_folders(source.path)))


def _rows(path: Path, asked: ScoreRequest) -> list[Item]:
    if configs := _configs(path):
        return [Item(config, (path, config)) for config in configs]
    names = [(folder, str(folder.relative_to(path))) for folder in _folders(path)]
    return [Item(name if name != "." else path.resolve().name, (folder, "")) for folder, name in names]


KIND: Final = ScoreKind(
    name="runs",
    doc="folder of measured serving runs: meta.json and requests.jsonl, or configs_*.json",
    holds=_holds,
    rows=_rows,
    predict=predict,
    reads=frozenset({"ops"}),
    check=check_profile,
)
