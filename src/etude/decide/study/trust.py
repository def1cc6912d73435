"""What a study may run without `--trust`: commands that read their inputs and write into the study's own folder.

Everything else is refused before anything runs, unless the study is trusted: by `--trust`, by
`study(path, trust=True)`, or as an entry of the gallery. What cannot be seen in a command is refused where it happens,
by `base/trust.py`.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Final

from etude.base.errors import UsageError
from etude.base.trust import HINT, OUT_BEHIND, WRITES, WRITES_THERE

if TYPE_CHECKING:
    from etude.decide.study.points import StudyTask

RUNS: Final = {
    "collect": "runs a program",
    "validate": "runs a program",
    "replay": "runs the operators of a job on this machine",
    "replay communication": "runs processes on this machine",
    "qualify": "runs measurements on this machine",
    "ops measure": "runs measurements on this machine",
    "chakra visualizer": "runs Graphviz",
    "mcp": "serves files of this machine",
    "studio": "serves files of this machine",
    "demo": "writes a demonstration",
    "study": "runs other studies",
}
"""Commands that do more than read and write files. A test holds all other commands to a list of those that do not."""
UNLESS: Final = {"qualify": "--measured"}
"""Command -> the option with which it only reads."""
MAY_WRITE: Final = {
    "--db", "--in", "--into", "--output", "--output-file", "--output_filename", "--log-filename", "--log_filename",
}  # fmt: skip
"""Options that name what some commands read and others write."""
INTO_INPUT: Final = {("card", "--write"), ("card", "-w")}
"""Flags by which a command writes into what it reads."""
_CODE_FILES: Final = (".py", ".pyc", ".pyd", ".pyw", ".pth", ".so", ".dll", ".dylib")
_CODE: Final = re.compile(r"[^\s=,;'\"\[\]{}]+\.pyc?:[A-Za-z_]\w*")
_LARGEST: Final = 1 << 20
"""Bytes of an input up to which it is read in search of code. Larger ones are data."""


def check(task: "StudyTask", names: Sequence[str], where: str) -> None:
    """Raises UsageError if a task does more than read its inputs and write its own folder; `names` are of its
    commands."""
    for problem, at in _problems(task, names):
        raise UsageError(problem, where=f"{where}: {at}", hint=HINT)


def _problems(task: "StudyTask", names: Sequence[str]) -> Iterator[tuple[str, str]]:
    given = tuple(sorted({*task.files, *task.inputs}))
    for name, words in zip(names, task.commands, strict=True):
        yield from ((problem, name) for problem in _of_command(words, given, task.inputs))
    for name, text in task.files.items():
        if name.lower().endswith(_CODE_FILES):
            yield f"`{name}` is code", "files"
        elif named := code_in(text, given):
            yield f"`{named}` runs Python code", f"files: {name}"
    for name, path in task.inputs.items():
        if named := code_in(_input(path), given):
            yield f"`{named}` runs Python code", name


def _of_command(words: Sequence[str], given: tuple[str, ...], inputs: Mapping[str, str]) -> Iterator[str]:
    verb = next((name for n in (2, 1) if (name := " ".join(words[:n])) in RUNS), "")
    if verb and UNLESS.get(verb) not in {word.partition("=")[0] for word in words if word.startswith("--")}:
        yield f"`{verb}` {RUNS[verb]}"
    if words and words[0].startswith("-"):
        yield f"`{words[0]}` stands before the command"
    for at, word in enumerate(words[1:], 1):
        if word in ("--", "--trust"):
            yield f"`{word}` {'passes a command on' if word == '--' else 'trusts another file'}"
        if (words[0], word) in INTO_INPUT:
            yield f"`{words[0]} {word}` writes into its input"
        if named := code_in(word, given):
            option = f"{words[at - 1]} " if words[at - 1].startswith("-") and not word.startswith("-") else ""
            yield f"`{option}{word}` runs Python code" + ("" if named == word else f", `{named}`")
    for shown, value in _written(words):
        if _outside(value, inputs):
            yield f"`{shown}` writes outside the study's folder"


def _written(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(as it is shown, value) of what a command may write."""
    verbs = [" ".join(words[:n]) for n in (2, 1)]
    places = []
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        short = word.startswith("-") and not word.startswith("--") and "o" in word  # -o X, -oX, -fo X
        if name in WRITES | MAY_WRITE or any((verb, name) in WRITES_THERE for verb in verbs):
            found = value if equals else "".join(words[at + 1 : at + 2])
            yield f"{name} {found}", found
        elif short:
            found = word.partition("o")[2].removeprefix("=") or "".join(words[at + 1 : at + 2])
            yield f"-o {found}", found
        elif not word.startswith("-"):
            places.append(word)
    if words and words[0] in OUT_BEHIND:
        yield from ((f"{words[0]} {place}", place) for place in places[1 + OUT_BEHIND[words[0]] :])


def _outside(value: str, inputs: Mapping[str, str]) -> bool:
    """Whether a path leaves the folder of the point, by itself or by an input, which is next to the study."""
    if not value or value.startswith("~") or os.path.isabs(value) or PureWindowsPath(value).anchor:
        return bool(value)
    parts = Path(os.path.normpath(value)).parts
    return parts[:1] == ("..",) or any(parts[: len(own)] == own for own in (Path(name).parts for name in inputs))


@lru_cache(4096)
def code_in(text: str, files: tuple[str, ...]) -> str:
    """The first `FILE.py:name` in a text, or `FILE:name` with one of these files; empty if there is none."""
    if found := _CODE.search(text):
        return found[0]
    own = (re.search(rf"{re.escape(name)}:[A-Za-z_]\w*", text) for name in files if f"{name}:" in text)
    return next((found[0] for found in own if found), "")


@lru_cache(4096)
def _input(path: str) -> str:
    """The text of an input that commands read as a description."""
    file = Path(path)
    try:
        if not file.is_file() or file.suffix not in (".yaml", ".yml", ".json") or file.stat().st_size > _LARGEST:
            return ""
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
