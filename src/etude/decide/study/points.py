"""What each point of a study runs: its commands, its files, its inputs, and the key that they make."""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.decide.study import templates
from etude.decide.study.opens import content
from etude.decide.study.spec import StudySpec

MACHINE_FILE = "machine.yaml"


@dataclass(frozen=True, slots=True)
class StudyTask:
    """Commands in the order in which they run, in a folder that holds these files and links to these inputs."""

    key: str
    commands: tuple[tuple[str, ...], ...]
    files: Mapping[str, str]
    inputs: Mapping[str, str]
    """Name in the folder -> where it is."""
    trusted: bool = False

    def shown(self) -> str:
        return "; ".join("etude " + shlex.join(words) for words in self.commands)


@dataclass(frozen=True, slots=True)
class Point:
    variant: str
    at: Mapping[str, Any]
    """Its place in the sweep."""
    seed: int | None
    tuned: Mapping[str, Any]
    task: StudyTask


def points_of(
    spec: StudySpec, variants: Sequence[str], tuned: Mapping[tuple[str, int], Mapping[str, Any]] | None = None
) -> list[Point]:
    """Every variant at every place of the sweep with every seed, in that order of nesting."""
    places = spec.space.points()
    found = []
    for variant in variants:
        for i, place in enumerate(places):
            extra = (tuned or {}).get((variant, i), {})
            seeds = spec.seeds or (None,)
            found += [Point(variant, place, s, extra, task_of(spec, variant, place, s, extra)) for s in seeds]
    _one_text_per_name(found, spec.where)
    return found


def task_of(
    spec: StudySpec, variant: str, place: Mapping[str, Any], seed: int | None, tuned: Mapping[str, Any]
) -> StudyTask:
    given = {**spec.given, **place, **spec.variants[variant], **tuned}
    if seed is not None:
        given["seed"] = seed
    given = {k: templates.filled(v, given, f"{spec.where}: {k}") for k, v in given.items()}
    files = dict(spec.files)
    machine = spec.machine
    if isinstance(machine, Mapping):
        files[MACHINE_FILE], machine = machine, MACHINE_FILE
    elsewhere = {"machine"} | set().union(
        *(templates.named(t, spec.where) for t in spec.commands.values()),
        templates.named_in(files, spec.where),
        templates.named_in(machine, spec.where),
        spec.mentioned,
    )
    if templates.FLAGS not in elsewhere and (unused := sorted(set(given) - elsewhere)):
        raise UsageError(
            f"no command uses the parameter `{unused[0]}`", where=spec.where, hint=f"{{{unused[0]}}}, or {{flags}}"
        )
    given["machine"] = templates.filled(machine, given, f"{spec.where}: machine")
    commands = tuple(
        templates.command(text, given, elsewhere, f"{spec.where}: {name}") for name, text in spec.commands.items()
    )
    at = f"{spec.where}: files"
    texts = {
        (own := templates.text(name, given, at)): _text(own, templates.filled(v, given, at))
        for name, v in files.items()
    }
    inputs = _inputs(commands, texts, spec.folder)
    return StudyTask(_key(commands, texts, inputs), commands, texts, inputs, spec.trusted)


def _text(name: str, value: Any) -> str:
    """A text as it is; what is more is YAML in a file that is called so, and JSON in any other."""
    if isinstance(value, str):
        return value
    if not name.endswith((".yaml", ".yml")):
        return json.dumps(value, indent=1) + "\n"
    import yaml

    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True))


def _one_text_per_name(points: Sequence[Point], where: str) -> None:
    seen: dict[str, str] = {}
    for point in points:
        for name, text in point.task.files.items():
            if not name or name.startswith("/") or ".." in Path(name).parts:
                raise UsageError(f"`{name}` is not the name of a file in the study's folder", where=f"{where}: files")
            if seen.setdefault(name, text) != text:
                hint = "put the parameter into its name: net-{bandwidth}.yaml"
                raise UsageError(f"`{name}` is not the same at every point", where=f"{where}: files", hint=hint)


def _inputs(commands: Sequence[Sequence[str]], files: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Words of commands that name a file or folder next to the study file."""
    found = {}
    for words in commands:
        for word in words[1:]:
            for part in {word, word.partition("=")[2], word.partition("@")[2]}:
                if part and part not in files and not part.startswith("-") and _beside(folder, part):
                    found[part.rstrip("/")] = str(folder / part)
    return found


@lru_cache(65536)
def _beside(folder: Path, part: str) -> bool:
    inside = Path(part)
    try:
        return not inside.is_absolute() and ".." not in inside.parts and inside.parts != () and (folder / part).exists()
    except (OSError, ValueError):
        return False


def _key(commands: Any, files: Mapping[str, str], inputs: Mapping[str, str]) -> str:
    whole = {
        "code": code_fingerprint(),
        "commands": commands,
        "files": dict(files),
        "inputs": {name: content(path) for name, path in inputs.items()},
    }
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:32]


@cache
def code_fingerprint() -> str:
    """Of Etude as it is here: what other code found is not taken for its own."""
    root = Path(__file__).resolve().parent.parent.parent
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".yaml", ".csv", ".json")):
        if path.relative_to(root).parts[:2] != (
            "decide",
            "study",
        ):  # how studies are run does not change what commands say
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]
