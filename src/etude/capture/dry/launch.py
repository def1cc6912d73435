"""Starts the ranks of a dry run, and says in a sentence why one could not be run."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.capture.collect.launcher import check_command

_LOOK_S = 0.02
NODE_RANKS = 8
"""Ranks of a node, where neither the command nor the world says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrySettings:
    """Parameters of a dry run."""

    world: int = 0
    """Ranks in all; 0: as many as the command's launcher would start, or one."""
    local_world: int = NODE_RANKS
    device: dict[str, Any] | None = None
    """Name, memory and multiprocessors of the device that the program finds; None: a CPU."""
    warmup: int = 1
    steps: int = 1
    """0: all of the program."""
    answers: dict[str, float] = field(default_factory=dict)


def stated_answers(given: Sequence[str]) -> dict[str, float]:
    """Values by name, of texts as `loss=2.0`."""
    found = {}
    for text in given:
        name, equals, value = text.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name:
            raise UsageError(f"`{text}` is not a name with a number", where="--answer", hint="for example loss=2.0")
    return found


class DryRanks:
    """A process that has imported PyTorch and runs ranks of a command when it is asked to, as a context."""

    def __init__(self, command: Sequence[str], folder: Path, settings: DrySettings) -> None:
        check_command(command, "collect --dry -o job/")
        self._folder, self._rounds = folder, 0
        (folder / "settings.json").write_text(json.dumps(asdict(settings)))
        source = str(Path(__file__).resolve().parents[3])
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
        words = [sys.executable, "-m", "etude.capture.dry", str(folder), *command]
        # What the program prints is no answer of ours: it goes to where messages go.
        self._process = subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=2, text=True)

    def __enter__(self) -> "DryRanks":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()
        self._process.wait()

    def run(self, ranks: Sequence[int], brief: Collection[int] = (), stands: Mapping[int, int] | None = None) -> int:
        """Runs these ranks; each leaves a file in the folder. The world that there is.

        Those that are `brief` end after one step. A rank that `stands` for another has got what this one asks for.
        """
        line = {"ranks": sorted(ranks), "brief": sorted(brief), "stands": dict(stands or {})}
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps(line) + "\n")
                self._process.stdin.flush()
        done = self._folder / f"round.{self._rounds}"
        self._rounds += 1
        while not done.exists() and self._process.poll() is None:
            time.sleep(_LOOK_S)
        refused = self._folder / "refused.json"
        if refused.exists():
            told = json.loads(refused.read_text())
            what = told["what"]
            if told["kind"] == "absent":
                hint = f"paths begin in the folder of the command, {Path.cwd()}"
                raise UsageError("there is no such script", where=what, hint=hint)
            hint = "a dry run takes `python train.py`, `python -m package`, or `torchrun ... train.py`"
            raise UsageError(f"`{what}` does not start a Python program", hint=hint)
        if not done.exists():
            hint = "is PyTorch installed? pip install etude[torch]"
            raise UsageError(f"the dry run ended with exit code {self._process.returncode}", hint=hint)
        world = int((self._folder / "world").read_text())
        for rank in ranks:
            if rank < world and not (self._folder / f"rank.{rank}.json.gz").exists():
                raise UsageError(f"rank {rank} ended without a result", hint="what it printed is above")
        return world


def refuse_problem(rank: int, problem: dict[str, Any], *, world: int, on_device: bool) -> None:
    """Raises the sentence for what stopped a rank of `world`."""
    kind = problem["kind"]
    if kind == "value":
        name = problem.get("name", problem["where"])
        raise UsageError(
            f"rank {rank} decides by the value of a tensor, and a dry run has none: `{problem['line']}`",
            where=problem["where"],
            hint=f"state it: --answer {name}=1.0, or --answer {problem['where']}=1.0",
        )
    if kind == "driven":
        raise UsageError(problem["what"], where=problem["where"], hint=problem["hint"])
    if kind == "exit":
        what = problem["what"]
        said = f"with exit code {what}" if what.lstrip("-").isdigit() else f"itself: {what}"
        hint = "" if on_device else "does it need a GPU? with --device h100 it finds one"
        raise UsageError(f"rank {rank}: the program ended {said}", hint=hint)
    if kind == "shape":
        raise UsageError(
            f"rank {rank}: the shape of a result depends on values, and a dry run has none: `{problem['line']}`",
            where=problem["where"],
            hint=f"state how many there are: --answer {problem['where']}=128",
        )
    if kind == "processes":
        raise UsageError(
            f"rank {rank}: the program starts processes of its own: `{problem['line']}`",
            where=problem["where"],
            hint="a dry run starts the ranks itself: give it what each of them runs",
        )
    text = " ".join(problem.get("text", "").split()) or f"`{problem['line']}`"
    raise UsageError(
        f"rank {rank}: {problem['what']}: {text[:600]}",
        where="" if problem["where"].startswith("<frozen") else problem["where"],
        hint=_hint(problem["what"], text.lower(), world=world, on_device=on_device),
    )


def _hint(what: str, text: str, *, world: int, on_device: bool) -> str:
    """What to do about an error that the program itself raised."""
    if what in ("FileNotFoundError", "NotADirectoryError"):
        return "a dry run reads what the program reads: a file of few samples with the same shapes is enough"
    if "mesh" in text:
        return "sizes of a mesh of devices multiply to the number of ranks (--world)"
    if world > 1 and what in ("AssertionError", "ValueError", "RuntimeError"):
        device = "" if on_device else ", and with --device h100 it finds such a GPU"
        return f"the program has {world:,} ranks (--world): are its sizes multiples of that?{device}"
    device = "" if on_device else "; with --device h100 the program finds such a GPU"
    return f"a dry run runs the program as it is, and needs what it reads{device}"
