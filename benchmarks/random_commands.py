"""Random commands of `serve`, `fleet`, `federate` and `search` with two source trees: the same JSON, or the difference.

    python benchmarks/random_commands.py OLD NEW [--count 600] [--seed 0] [--only "serve split"] [--keep FOLDER]

OLD and NEW hold src/etude. Commands are drawn by seed from `command_grammar.py` until this many are valid: they end
well in one of the trees. What both refuse is run, and compared, but not counted. Each tree has one process for all of
its commands, one after the other, and a cache of its own, so that costs are worked out by the code that is compared.
Exit code 1 if anything differs; the commands that do are listed, with the first place in their JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from command_files import write_files
from command_grammar import WEIGHTS, commands, words

LIMIT_S = 300
"""A command that takes longer has no answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    code: int | None
    """None: the process died, or took too long."""
    out: str = ""
    err: str = ""

    @property
    def sha(self) -> str:
        return hashlib.sha256(self.out.encode()).hexdigest()

    @property
    def ended_well(self) -> bool:
        return self.code == 0

    def same(self, other: Answer) -> bool:
        return (self.code, self.sha) == (other.code, other.sha)


class Tree:
    """A process that runs commands with the sources of a tree."""

    def __init__(self, tree: Path, folder: Path, cache: Path) -> None:
        self.tree, self.folder, self.cache = tree, folder, cache
        self.process: subprocess.Popen[str] | None = None
        self.cpu_s = 0.0

    def run(self, command: str) -> Answer:
        process = self.process = self.process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(words(command)) + "\n")
            process.stdin.flush()
            with selectors.DefaultSelector() as ready:
                ready.register(process.stdout, selectors.EVENT_READ)
                line = process.stdout.readline() if ready.select(LIMIT_S) else ""
        except BrokenPipeError:
            line = ""
        if not line:
            self.end()
            return Answer(None)
        found = json.loads(line)
        self.cpu_s = found.pop("cpu_s")
        return Answer(**found)

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process = None

    def _start(self) -> subprocess.Popen[str]:
        here = Path(__file__).resolve()
        env = {**os.environ, "PYTHONPATH": f"{self.tree / 'src'}{os.pathsep}{here.parent}"}
        env["XDG_CACHE_HOME"] = str(self.cache)
        return subprocess.Popen(
            [sys.executable, str(here), "--worker"], cwd=self.folder, env=env, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip


def worker() -> int:
    """Words of a command a line on stdin, its answer a line on stdout."""
    from etude.surface.cli.executing import executed

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    for line in sys.stdin:
        code, out, err = executed(json.loads(line))
        told = {"code": code, "out": out, "err": err, "cpu_s": time.process_time()}
        answers.write(json.dumps(told) + "\n")
        answers.flush()
    return 0


def difference(old: Any, new: Any, where: str = "$") -> str:
    """The first place where two values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            if key not in old or key not in new:
                return f"{where}.{key} is only in the {'old' if key in old else 'new'}"
            if found := difference(old[key], new[key], f"{where}.{key}"):
                return found
        return "" if list(old) == list(new) else f"{where}: the order of keys"
    if isinstance(old, list) and isinstance(new, list):
        pairs = enumerate(zip_longest(old, new))
        return next((found for n, (a, b) in pairs if (found := difference(a, b, f"{where}[{n}]"))), "")
    return "" if old == new and type(old) is type(new) else f"{where}: {old!r:.60} -> {new!r:.60}"


def told(old: Answer, new: Answer) -> str:
    """How two answers differ, in a line."""
    if old.code != new.code:
        said = next((one.err.strip().splitlines() for one in (new, old) if one.err.strip() and one.code), [""])
        return f"exit {old.code} -> {new.code}: {said[0]}"
    try:
        return difference(json.loads(old.out), json.loads(new.out)) or "the same values, written otherwise"
    except ValueError:
        return "the text differs"


def compared(trees: tuple[Tree, Tree], seed: int, only: str) -> Iterator[tuple[str, Answer, Answer]]:
    for command in commands(seed, only):
        yield command, trees[0].run(command), trees[1].run(command)


def family(command: str) -> str:
    kind = "search plans" if "--over" in command else "search space" if command.startswith("search") else command
    return max((name for name in WEIGHTS if kind.startswith(name)), key=len)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="families that begin so: serve, 'fleet train'")
    parser.add_argument("--keep", type=Path, help="a new folder for the files that commands read, to run one by hand")
    parser.add_argument("--verbose", action="store_true", help="list what is refused, too, and slow commands")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = given.keep.resolve() if given.keep else Path(place) / "files"
        folder.mkdir(parents=True)
        write_files(folder)
        pair = [Tree(path.resolve(), folder, Path(place) / name)
                for path, name in ((given.old, "old"), (given.new, "new"))]  # fmt: skip
        trees = pair[0], pair[1]
        try:
            return report(trees, given)
        finally:
            for tree in trees:
                tree.end()


def report(trees: tuple[Tree, Tree], given: argparse.Namespace) -> int:
    valid: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    differ = 0
    for command, old, new in compared(trees, given.seed, given.only):
        (valid if old.ended_well or new.ended_well else refused)[family(command)] += 1
        if not old.same(new):
            differ += 1
            print(f"differs  etude {command}\n         {told(old, new)}", flush=True)
        elif not old.ended_well and given.verbose:
            print(f"refused  etude {command}\n         {(old.err.strip() or 'no answer').splitlines()[0]}", flush=True)
        if valid.total() >= given.count or refused.total() > 2 * given.count:
            break
    print(f"\n{'family':18} {'valid':>6} {'refused':>8}")
    for name in WEIGHTS:
        if valid[name] or refused[name]:
            print(f"{name:18} {valid[name]:6} {refused[name]:8}")
    print(f"{valid.total()} valid commands of seed {given.seed}, {differ} differ; {refused.total()} more refused by "
          f"both trees; CPU {trees[0].cpu_s:.0f} s and {trees[1].cpu_s:.0f} s")  # fmt: skip
    return 1 if differ else 0


if __name__ == "__main__":
    raise SystemExit(worker() if sys.argv[1:] == ["--worker"] else main())
