"""One task, carried out: its commands one after the other in a folder of its own.

What runs a command is given by the caller: the command line runs it in its own process, a worker is such a process that
takes tasks as lines of JSON.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

Execute: TypeAlias = Callable[[list[str]], tuple[int, str, str]]
"""Words of a command -> exit code, stdout, stderr."""
Answer: TypeAlias = dict[str, Any]
"""`answers`: code and text of each command; `error`: why the last one failed, or nothing."""

FAILED: Final = 2
"""Exit codes from here on are failures; 1 is an answer of no."""
CUT_OFF: Final = 128


Said: TypeAlias = dict[str, dict[str, Any]]
"""What commands that leave nothing behind have said, by all that they could read: points often share some."""


def answer(task: Mapping[str, Any], execute: Execute, said: Said | None = None) -> Answer:
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
            return _run(task, execute, str(place), {} if said is None else said)
        finally:
            os.chdir(before)


def _run(task: Mapping[str, Any], execute: Execute, folder: str, said: Said) -> Answer:
    answers: list[dict[str, Any]] = []
    wrote: list[list[str]] = []
    for words in task["commands"]:
        known = _read([*words, *(word for before in wrote for word in before)], task["files"])
        key = json.dumps([words, wrote, known, task["inputs"]], sort_keys=True)
        if key in said:
            answers.append(said[key])
            continue
        before = _state(folder)
        code, out, err = execute(list(words))
        if code >= CUT_OFF:
            raise KeyboardInterrupt
        if code >= FAILED:
            lines = [
                line for line in err.replace(f"{folder}/", "").splitlines() if line.startswith(("error:", "hint:"))
            ]
            said = " ".join(lines).removeprefix("error: ") or f"exit code {code}"
            return {"answers": answers, "error": f"etude {words[0]}: {said}"}
        answers.append({"code": code, "out": out.replace(f"{folder}/", "").replace(folder, ".")})
        if _state(folder) == before:
            said[key] = answers[-1]
        else:
            wrote.append(list(words))
    return {"answers": answers, "error": ""}


def _read(words: list[str], files: Mapping[str, str]) -> dict[str, str]:
    """The files that commands of these words may read: named by them, or by one of those."""
    found: dict[str, str] = {}
    texts = list(words)
    while texts:
        text = texts.pop()
        for name in files:
            if name not in found and Path(name).stem in text:
                found[name] = files[name]
                texts.append(files[name])
    return found


def _state(folder: str) -> list[tuple[str, int, int]]:
    """Names, sizes and times of all that lies in a folder."""
    files = [Path(at) / name for at, _, names in os.walk(folder) for name in names]
    return sorted((str(f), f.lstat().st_size, f.lstat().st_mtime_ns) for f in files)


def serve(lines: Iterable[str], write: Callable[[str], None], execute: Execute) -> None:
    """A worker: a task a line, an answer a line, until there are no more."""
    said: Said = {}
    for line in lines:
        write(json.dumps(answer(json.loads(line), execute, said)) + "\n")
