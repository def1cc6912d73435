"""Processes that a program starts: ranks are started by the dry run, and a program that starts them itself is refused.

Commands of other kinds (`git rev-parse`, `nvidia-smi`) run as they would.
"""

import multiprocessing
import multiprocessing.process
import os
import sys
from importlib import import_module
from typing import Any

from etude.capture.dry.command import LAUNCHERS

_STARTERS = (*LAUNCHERS, "accelerate", "deepspeed", "mpirun", "srun")


class OwnProcessesError(Exception):
    """The program starts processes of its own."""


def refuse_processes(torch: Any) -> None:
    """Ends the program where it starts a program of Python as a process."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OwnProcessesError

    import_module("torch.multiprocessing").start_processes = refuse  # type: ignore[attr-defined]
    torch.multiprocessing.spawn = refuse
    multiprocessing.process.BaseProcess.start = refuse  # type: ignore[method-assign]
    sys.addaudithook(_audited)


def _audited(event: str, given: tuple[Any, ...]) -> None:
    if event == "os.system" or event.startswith(("subprocess.Popen", "os.exec", "os.posix_spawn")):
        command = given[0] if event == "os.system" else given[1]
        if starts_python(command):
            raise OwnProcessesError


def starts_python(command: Any) -> bool:
    """Whether a command, a text or a list of words, runs a program of Python or a launcher of ranks."""
    parts = command if isinstance(command, (list, tuple)) else [command]
    words = " ".join(os.fsdecode(part) for part in parts).split()
    names = [os.path.basename(word) for word in words]
    runs = next((place for place, name in enumerate(names) if name.startswith("python")), None)
    after = words[runs + 1 :] if runs is not None else []
    return any(name in _STARTERS for name in names) or any(word.endswith(".py") for word in after)
