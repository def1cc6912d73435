"""What a study leaves behind: numbers, the files and machines it used, its commands, and one page."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from etude import __version__
from etude.base.errors import EtudeError, UsageError
from etude.base.files import writing
from etude.decide.study.points import Point, code_fingerprint
from etude.decide.study.spec import StudySpec
from etude.decide.study.sweep import table_of

if TYPE_CHECKING:
    from etude.decide.study.run import Outcome

STUDY = "study.yaml"
PAGE = "page.html"


def prepare(folder: Path, spec: StudySpec) -> None:
    """The folder, with the study in it. One that holds something else is left alone."""
    if folder.exists() and not folder.is_dir():
        raise UsageError("is a file, but a study writes a folder", where=str(folder))
    if folder.is_dir() and any(folder.iterdir()) and not (folder / STUDY).is_file():
        raise UsageError("contains files that are not a study", where=str(folder), hint="use another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise UsageError(f"cannot be created: {problem.strerror}", where=str(folder)) from None
    _put(folder / STUDY, _yaml(dict(spec.text)))


def write(folder: Path, found: "Outcome", points: Sequence[Point]) -> None:
    """Everything but `results.parquet`. The same study leaves the same bytes."""
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    from etude.decide.study.page import page

    for name, rows in (("points", found.points), ("rows", found.rows)):
        table = table_of(rows)
        with writing(folder / f"{name}.parquet", force=True) as path:
            pq.write_table(table, path, compression="zstd")
        with writing(folder / f"{name}.csv", force=True) as path:
            csv.write_csv(table_of([{k: _cell(v) for k, v in row.items()} for row in rows]), path)
    _put(folder / "checks.json", json.dumps(found.checks, indent=2) + "\n")
    _put(folder / "card.yaml", _yaml(_card(found, points)))
    _put(folder / "commands.sh", _commands(points))
    _files(folder / "files", points)
    _machines(folder / "machines", points)
    _put(folder / PAGE, page(found))


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _card(found: "Outcome", points: Sequence[Point]) -> dict[str, Any]:
    spec = found.spec
    return {
        "study": spec.name,
        **dict(spec.facts),
        "etude": __version__,
        "code": code_fingerprint(),
        "points": len(points),
        "seeds": list(spec.seeds),
        "test": spec.stats,
        "interval": spec.interval,
        "inputs": sorted({name for point in points for name in point.task.inputs}),
        "changed": list(spec.changed),
        "checks": {check["name"]: check["ok"] for check in found.checks},
        "claims": {claim["figure"]: claim["verdict"] for claim in found.claims},
    }


def _commands(points: Sequence[Point]) -> str:
    """Every command, to be typed in `files/`."""
    lines = ["#!/bin/sh", "# Each block is one point, to be run in an empty folder with the files of `files/`."]
    for point in points:
        at = "".join(f", {k} {v}" for k, v in {**point.at, **point.tuned}.items())
        seed = "" if point.seed is None else f", seed {point.seed}"
        about = " ".join(f"{point.variant}{at}{seed}".split())  # a comment is one line
        lines += ["", f"# {about}", *point.task.shown().split("; ")]
    return "\n".join(lines) + "\n"


def _files(folder: Path, points: Sequence[Point]) -> None:
    for name, text in {n: t for point in points for n, t in point.task.files.items()}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _put(folder / name, text)


def _machines(folder: Path, points: Sequence[Point]) -> None:
    """Every system of the catalogue that a command names, with its figures as they are now."""
    from etude.machine import open_system, system_names

    known = set(system_names())
    words = {word for point in points for command in point.task.commands for word in command}
    for name in sorted(words & known):
        try:
            text = _yaml(open_system(name).to_dict())
        except EtudeError:
            continue
        folder.mkdir(exist_ok=True)
        _put(folder / f"{name}.yaml", text)


def _yaml(value: dict[str, Any]) -> str:
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120))


def _put(path: Path, text: str) -> None:
    with writing(path, force=True) as temporary:
        temporary.write_text(text, "utf-8")
