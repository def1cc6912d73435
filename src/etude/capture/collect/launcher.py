"""Runs a command so that the PyTorch processes in it record themselves. The script is not changed.

A folder with a `sitecustomize.py` goes to the front of PYTHONPATH, and Python runs that file at each start. It waits
for `import torch` and then records (see `inject`); processes that never train write nothing.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.base.trust import check_code
from etude.base.units import format_bytes
from etude.capture.collect import flight, layout
from etude.capture.collect.manifest import FIRST
from etude.capture.collect.options import CollectOptions

SETTINGS = "ETUDE_COLLECT"
BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"

_PATIENCE_S = 20.0
_LAST_BYTES = 4096
_LOOK_S = 0.05
"""Between two looks at whether a program has done what it was started for."""
_TO_WRITE_S = 60.0
"""Time after a Ctrl-C, which has reached the child too: it writes its recording, which is slow on a busy machine."""


@dataclass(frozen=True, slots=True)
class LaunchedProgram:
    """How a command ended, and what was recorded."""

    exit_code: int
    """The command's own; 128 + n if signal n ended it."""
    manifests: tuple[dict[str, Any], ...]
    failures: tuple[str, ...] = ()
    """Recording failures, as the workers report them."""
    beside: tuple[dict[str, Any], ...] = ()
    """Manifests of other processes that recorded and are not ranks: not part of the job."""
    printed: str = ""
    """The last that the command printed, where that was not shown."""

    @property
    def problems(self) -> list[str]:
        """Messages about what differs from the request."""
        found = [*self.failures]
        found += [f"rank {m['rank']}: partial: {m['reason']}" for m in self.manifests if m["partial"]]
        found += [f"rank {m['rank']}: {said}" for m in self.manifests if (said := _uneven(m))]
        world = max((m["world_size"] for m in self.manifests), default=0)
        missing = sorted(set(range(world)) - {m["rank"] for m in self.manifests})
        if missing:
            found.append(f"nothing from rank {', '.join(map(str, missing))} of {world}")
        begins = {_begin(m): m["rank"] for m in reversed(self.manifests) if m["files"]}
        if len(begins) > 1:
            shown = "; ".join(f"rank {rank} {begin}" for begin, rank in sorted(begins.items(), key=lambda b: b[1]))
            found.append(f"the ranks recorded different parts of the run: {shown}")
        if not found and not self.manifests and not self.beside:
            found.append("nothing was recorded: no process of the command called a torch.nn.Module or an optimizer")
        return found


def _uneven(about: dict[str, Any]) -> str:
    """What is to be said of steps in which optimizers stepped differently often."""
    counts = about["steps"].get("optimizer_steps") or []
    if len(set(counts)) < 2:
        return ""
    shown = ", ".join(map(str, counts[:8]))
    return f"the recorded steps have {shown} optimizer steps: an iteration of the program may be several of them"


def _begin(about: dict[str, Any]) -> str:
    numbers = about["steps"]["numbers"]
    return f"from step {numbers[0]} on" if numbers else "everything, without steps"


def launch(
    command: Sequence[str], folder: str | os.PathLike[str], options: CollectOptions, *, whole: bool = False,
    marked: Mapping[str, Any] | None = None,
) -> LaunchedProgram:  # fmt: skip
    """Runs `command` to its end. `whole`: record from `import torch` to the end instead of steps. `marked`: mark
    moments of each step (see `moments`), show nothing of what the program prints, and end it when it is recorded."""
    place = Path(folder).absolute()
    check_command(command)
    # No rank has been started yet, so existing files are from an earlier run: a world of 0.
    layout.make_room(place, 0, 0, force=options.force)
    layout.clear_recordings(place)
    layout.take_problems(place)
    cut_off: dict[int, int] = {}
    try:
        if marked is None:
            code, printed = _run(list(command), environment(place, options, whole=whole), place), ""
        else:
            variables = environment(place, options, whole=whole, marked=dict(marked))
            code, printed = run_until(command, variables, lambda: _is_recorded(place))
        cut_off = layout.unfinished(place)
    finally:
        layout.clear_recordings(place)
    others = layout.beside(place)
    if len(others) == 1 and not layout.manifests(place):
        layout.promote(place, others.pop())
    failures = (*layout.take_problems(place), *(_cut_off(pid, size) for pid, size in cut_off.items()))
    return LaunchedProgram(code, tuple(layout.manifests(place)), failures, tuple(others), printed)


def _cut_off(pid: int, size_bytes: int) -> str:
    written = f"{format_bytes(size_bytes)} were written, and are removed: they are not complete"
    return f"process {pid} ended while it wrote its recording: {written}"


def check_command(command: Sequence[str], verb: str = "collect -o run/") -> None:
    """Refuses what cannot be run."""
    if not command:
        raise UsageError("no command to run", hint=f"etude {verb} -- python train.py")
    if shutil.which(command[0]) is None:
        raise UsageError("command not found", where=command[0])


def _is_recorded(folder: Path) -> bool:
    """Every rank has written all that was asked for, or one of them could not. A program that ends early has an exit
    code of its own."""
    if layout.has_problems(folder):
        return True
    found = layout.manifests(folder)
    if not found or any(about["partial"] for about in found):
        return False
    missing = any(not (folder / file).exists() for about in found for file in about["files"].values())
    return len(found) == found[0]["world_size"] and not missing and not layout.unfinished(folder)


def environment(folder: Path, options: CollectOptions, *, whole: bool = False, **more: Any) -> dict[str, str]:
    """The variables that make Python processes record."""
    asked = options.to_dict() | {"force": False}
    changed = injected({"folder": str(folder), "options": asked, "whole": whole} | more)
    if options.flight_recorder:
        flight.ask_for_room(changed)
    return changed


def injected(settings: Mapping[str, Any]) -> dict[str, str]:
    """The variables that make Python processes call `inject.activate` with these settings."""
    changed = dict(os.environ)
    changed.pop(FIRST, None)
    changed[SETTINGS] = json.dumps(settings)
    paths = [str(BOOTSTRAP), *filter(None, [changed.get("PYTHONPATH")])]
    changed["PYTHONPATH"] = os.pathsep.join(paths)
    return changed


def run_until(command: Sequence[str], environment: Mapping[str, str], done: Callable[[], bool]) -> tuple[int, str]:
    """Runs a command, and ends it and all that it started when `done`. Its exit code, 0 if it was ended, and the last
    that it printed, which is not shown."""
    check_code(command[0])
    with tempfile.TemporaryFile() as printed:
        with subprocess.Popen(
            command, env=environment, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
        ) as child:
            try:
                while child.poll() is None:
                    if done():
                        return 0, ""
                    time.sleep(_LOOK_S)
            finally:
                _end_all(child)
        printed.seek(max(printed.tell() - _LAST_BYTES, 0))
        last = printed.read().decode(errors="replace").strip()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode, last


def _end_all(child: subprocess.Popen[bytes]) -> None:
    """Ends a session: what the command started goes with it, also where the command has ended before."""
    for ask, patience_s in ((signal.SIGTERM, _PATIENCE_S), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, ask)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience_s)


def _run(command: list[str], environment: dict[str, str], folder: Path) -> int:
    check_code(command[0])
    child = subprocess.Popen(command, env=environment)
    code: int | None
    try:
        code = child.wait()
    except BaseException as stop:
        code = _end(child, folder, told=isinstance(stop, KeyboardInterrupt))
        if code is None:
            raise
    return code if code >= 0 else 128 - code


def _end(child: subprocess.Popen[bytes], folder: Path, *, told: bool) -> int | None:
    """Asks a child to end, and then kills it. None if it cannot be ended.

    `told`: Ctrl-C in a terminal has reached the child too, so it gets time to write before it is asked again. A child
    that writes its recording, or whose own children do, gets that time after it was asked.
    """
    stages = (
        (None, _TO_WRITE_S if told else 0.0),
        (signal.SIGTERM, _PATIENCE_S),
        (None, _TO_WRITE_S),
        (signal.SIGKILL, 5.0),
    )
    for number, (ask, patience_s) in enumerate(stages):
        if ask is not None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(ask)
        if number == 2 and not layout.unfinished(folder):
            continue
        try:
            return child.wait(patience_s)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:  # a second Ctrl-C: no more waiting at this stage
            continue
    return None
