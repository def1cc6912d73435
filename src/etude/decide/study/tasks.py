"""One task, carried out: its commands one after the other in a folder of its own.

What runs a command is given by the caller: the command line runs it in its own process, a worker is such a process that
takes tasks as lines of JSON.
"""

import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from etude.base.trust import limited, trusting
from etude.decide.study.opens import recording

Execute: TypeAlias = Callable[[list[str]], tuple[int, str, str]]
"""Words of a command -> exit code, stdout, stderr."""
Answer: TypeAlias = dict[str, Any]
"""`answers`: code and text of each command; `error`: why the last one failed, or nothing; `opened`: what they read
outside their folder, path -> hash."""

FAILED: Final = 2
"""Exit codes from here on are failures; 1 is an answer of no."""
CUT_OFF: Final = 128
MOST_KEPT_BYTES: Final = 64 << 20
"""Of files that commands have written, over all tasks of a process."""


@dataclass(slots=True)
class TaskAnswers:
    """What commands have said and written, by all that they could read: points often share some."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """What each left behind, where it fits."""
    opened: dict[str, dict[str, str]] = field(default_factory=dict)
    kept_bytes: int = 0

    def keep(
        self, key: str, answer: dict[str, Any], folder: Path, written: Collection[str], opened: dict[str, str]
    ) -> None:
        sizes = sum((folder / name).stat().st_size for name in written)
        if self.kept_bytes + sizes <= MOST_KEPT_BYTES:
            self.kept_bytes += sizes
            self.answers[key] = answer
            self.opened[key] = opened
            self.files[key] = {name: (folder / name).read_bytes() for name in written}

    def repeated(self, key: str, folder: Path) -> dict[str, Any] | None:
        """The answer, and what was written is in the folder again; None: not known."""
        for name, content in self.files.get(key, {}).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return self.answers.get(key)


class Wrote(NamedTuple):
    """A command that left something behind."""

    key: str
    names: frozenset[str]
    """Files and folders at the top, by their stems."""
    is_named: bool
    """By its own words: then only commands that name one can read it."""


def answer(task: Mapping[str, Any], execute: Execute, said: TaskAnswers | None = None) -> Answer:
    """What the commands of a task say. It stops at the first that fails. Paths of the folder are not in it."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="etude-study-") as folder:
        place = Path(os.path.realpath(folder))
        for name, text in task["files"].items():
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, "utf-8")
        for name, source in task["inputs"].items():
            link = place / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source)
        try:
            os.chdir(place)
            with trusting() if task.get("trusted") else limited(place):
                return _run(task, execute, place, TaskAnswers() if said is None else said)
        finally:
            os.chdir(before)


def _run(task: Mapping[str, Any], execute: Execute, place: Path, said: TaskAnswers) -> Answer:
    answers: list[dict[str, Any]] = []
    opened: dict[str, str] = {}
    wrote: list[Wrote] = []
    folder = str(place)
    for words in task["commands"]:
        key = _key(words, task, wrote)
        before = _state(place)
        known = said.repeated(key, place)
        if known is None:
            with recording(place, words) as read:
                code, out, err = execute(list(words))
            if code >= CUT_OFF:
                raise KeyboardInterrupt
            opened |= (of_this := read.opened())
            if code >= FAILED:
                why = f"etude {words[0]}: {_why(code, err, folder)}"
                return {"answers": answers, "error": why, "opened": opened}
            known = {"code": code, "out": out.replace(f"{folder}/", "").replace(folder, ".")}
        else:
            opened |= (of_this := said.opened[key])
        answers.append(known)
        after = _state(place)
        written = [name for name, state in after.items() if before.get(name) != state]
        if key not in said.answers and all(name not in before for name in written) and before.keys() <= after.keys():
            said.keep(key, known, place, written, of_this)
        if after != before:
            names = frozenset(Path(Path(name).parts[0]).stem for name in {*written, *(before.keys() - after.keys())})
            wrote.append(Wrote(key, names, all(any(name in word for word in words) for name in names)))
    return {"answers": answers, "error": "", "opened": opened}


def _why(code: int, err: str, folder: str) -> str:
    lines = [line for line in err.replace(f"{folder}/", "").splitlines() if line.startswith(("error:", "hint:"))]
    return " ".join(lines).removeprefix("error: ") or f"exit code {code}"


def _key(words: list[str], task: Mapping[str, Any], wrote: list[Wrote]) -> str:
    """A command by all that it may read: files of the task that its words name, or that one of those names, and what
    commands before it wrote, which are known by their own keys."""
    files: Mapping[str, str] = task["files"]
    found: dict[str, str] = {}
    texts, seen = list(words), list(words)
    while texts:
        text = texts.pop()
        for name in files:
            if name not in found and Path(name).stem in text:
                found[name] = files[name]
                texts.append(files[name])
                seen.append(files[name])
    takes_all = any(word in (".", "..") or "*" in word for word in words)
    from_before = [
        one.key
        for one in wrote
        if takes_all or not one.is_named or any(name in text for name in one.names for text in seen)
    ]
    return json.dumps([list(words), from_before, found, task["inputs"]], sort_keys=True)


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file of a folder."""
    files = [Path(at) / name for at, _, names in os.walk(folder) for name in names]
    return {str(f.relative_to(folder)): (f.lstat().st_size, f.lstat().st_mtime_ns) for f in files}


def serve(lines: Iterable[str], write: Callable[[str], None], execute: Execute) -> None:
    """A worker: a task a line, an answer a line, until there are no more."""
    said = TaskAnswers()
    for line in lines:
        write(json.dumps(answer(json.loads(line), execute, said)) + "\n")
