"""Cards as YAML: `card.yaml` in the folder of a job, `NAME.card.yaml` next to a single file or a name in a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from etude.base.errors import UsageError
from etude.base.figures import safe_loader
from etude.base.files import writing
from etude.model.card import Card

NAME: Final = "card.yaml"
_ENDINGS: Final = re.compile(r"(\.(gz|zst|json|et|kineto|pt\.trace))+$")


def place(job: Path) -> Path:
    """Where the card of the job at this path is, or would be."""
    if job.is_dir():
        return job / NAME
    return job.with_name(f"{_ENDINGS.sub('', job.name)}.{NAME}")


def find(job: Path) -> Card | None:
    """The card stored with a job; None if there is none."""
    path = place(job)
    return read(path) if path.is_file() else None


def read(path: Path) -> Card:
    import yaml

    try:
        found = yaml.load(path.read_text(encoding="utf-8"), safe_loader())
    except OSError as problem:
        raise UsageError(f"cannot be read: {problem.strerror}", where=str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise UsageError(f"is not YAML: {problem}", where=str(path)) from None
    return Card.from_dict(found, str(path))


def text(card: Card) -> str:
    import yaml

    return str(yaml.dump(card.to_dict(), sort_keys=False, allow_unicode=True, width=120))


def write(card: Card, path: Path, *, force: bool = False) -> None:
    with writing(path, force=force) as out:
        out.write_text(text(card), encoding="utf-8")
