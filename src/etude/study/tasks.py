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


def answer(task: Mapping[str, Any], execute: Execute) -> Answer:
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
            return _run(task["commands"], execute, str(place))
        finally:
            os.chdir(before)


def _run(commands: Iterable[list[str]], execute: Execute, folder: str) -> Answer:
    answers: list[dict[str, Any]] = []
    for words in commands:
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
    return {"answers": answers, "error": ""}


def serve(lines: Iterable[str], write: Callable[[str], None], execute: Execute) -> None:
    """A worker: a task a line, an answer a line, until there are no more."""
    for line in lines:
        write(json.dumps(answer(json.loads(line), execute)) + "\n")
