"""Do the tests notice a wrong number? Mutants drawn by seed, each run against the tests that cover its line.

    python tools/mutate.py serve fleet search --count 120 --seed 1
    python tools/mutate.py serve --path src/etude/world/serve/offload --count 40
    python tools/mutate.py serve --again            the survivors of the last run
    make mutants N=200 SEED=1 ROOM=serve

A room is a folder of src/etude with tests in a folder of tests/ of the same name. Which tests run a line is recorded
once (`covering.py`) and kept in .cache/mutants; a kernel counts as run by every test that calls it. Those tests run
first, the quickest first, then the others of their files, which may see what a fixture has made. What dies by a failed
test, an error or the clock is killed. Everything happens in a copy of the tree in .cache/mutants: the sources are never
touched, and neither is the cache of step costs. Survivors that change nothing are in `equivalent.toml`, with a reason.

mutmut 3 and cosmic-ray were looked at first. mutmut puts all mutants of a function into one file and chooses among them
when it is called, which a compiled kernel cannot do; cosmic-ray edits the sources in place and runs one command for
every mutant, so that each would run all tests of a room.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from mutants import Mutant, mutants_of

LIMIT_S: Final = 180.0
"""Recorded seconds of tests that a mutant is given, and the least time until the clock kills it."""
KILLED, SURVIVED, EQUIVALENT, NO_TEST = "killed", "survived", "equivalent", "no test"


# -- places ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkout:
    """A source tree, and the copy of it in which mutants live."""

    root: Path

    @property
    def cache(self) -> Path:
        return self.root / ".cache" / "mutants"

    @property
    def tree(self) -> Path:
        return self.cache / "tree"

    @property
    def kernels(self) -> Path:
        """Compiled kernels of the copy as it is; a mutant has its own, since it would replace them."""
        return self.cache / "kernels"

    @property
    def steps(self) -> Path:
        """The same of step costs."""
        return self.cache / "steps"

    @property
    def last(self) -> Path:
        return self.cache / "last.json"

    def room(self, name: str) -> Path:
        """Folder of a room in src/etude, relative to the root: the outermost with its name."""
        found = [path for path in (self.root / "src" / "etude").rglob(name) if path.is_dir()]
        if not found or not (self.root / "tests" / name).is_dir():
            raise SystemExit(f"no room `{name}`: src/etude has no such folder, or tests/ has none")
        return min(found, key=lambda path: len(path.parts)).relative_to(self.root)

    def sources(self, folder: Path) -> list[str]:
        """Without those of rooms inside, which have tests of their own."""
        inside = [place for place in (self.root / folder).rglob("*") if self._is_room(place)]
        every = (path for path in (self.root / folder).rglob("*.py") if not any(path.is_relative_to(i) for i in inside))
        return sorted(str(path.relative_to(self.root)) for path in every)

    def _is_room(self, place: Path) -> bool:
        tests = self.root / "tests" / place.name
        return place.is_dir() and tests.is_dir() and self.root / self.room(place.name) == place


def copy_tree(at: Checkout) -> None:
    """Makes the copy equal to the checkout: what git knows or would add. Kernels that are compiled there are taken."""
    words = ["git", "ls-files", "-co", "--exclude-standard"]
    listed = subprocess.run(words, cwd=at.root, capture_output=True, text=True, check=True).stdout.splitlines()
    wanted = {name for name in listed if (at.root / name).is_file()}
    for path in [path for path in at.tree.rglob("*") if path.is_file() and "__pycache__" not in path.parts]:
        if str(path.relative_to(at.tree)) not in wanted:
            path.unlink()
    for name in wanted:
        here, there = at.root / name, at.tree / name
        if not there.exists() or _stamp(there) != _stamp(here) or there.read_bytes() != here.read_bytes():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(here, there)
    for kept in [] if at.kernels.exists() else (at.root / "src").rglob("__pycache__/*.etk"):
        source = str(at.tree / kept.parent.parent.relative_to(at.root))
        folder = at.kernels / f"{Path(source).name}_{hashlib.sha1(source.encode()).hexdigest()}"  # as Numba names it
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(kept, folder)
    for folder in (at.kernels, at.steps):
        folder.mkdir(parents=True, exist_ok=True)


def _stamp(path: Path) -> int:
    return path.stat().st_mtime_ns


def pytest(
    at: Checkout, words: list[str], *, kernels: Path, steps: Path, timeout_s: float | None = None, **more: str
) -> tuple[int, str]:
    """Exit code and what was printed; -1 where time ran out."""
    env = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(at.tree / "src"), str(Path(__file__).resolve().parent)]),
        "ETUDE_SHARED": os.environ.get("ETUDE_SHARED", str(at.root.parent / "shared")),
        "ETUDE_HYPOTHESIS": "no-shrink", "NUMBA_CACHE_DIR": str(kernels), "XDG_CACHE_HOME": str(steps), **more,
    }  # fmt: skip
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words]
    try:
        done = subprocess.run(
            command, cwd=at.tree, env=env, timeout=timeout_s, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return -1, ""
    return done.returncode, done.stdout + done.stderr


# -- which tests cover a line ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Covered:
    """Test -> what it runs, for the tests of a room that pass."""

    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    imports: dict[str, set[str]] = field(default_factory=dict)
    """Source -> sources that import it."""

    def of(self, mutant: Mutant) -> list[str]:
        """Tests that run the line, the quickest first."""
        found = [name for name, one in self.tests.items() if self._runs(one, mutant)]
        return sorted(found, key=lambda name: (self.tests[name]["seconds"], name))

    def _runs(self, one: dict[str, Any], mutant: Mutant) -> bool:
        lines = one["lines"].get(mutant.path, ())
        if mutant.line in lines or f"{mutant.path}:{mutant.function}" in one["kernels"]:
            return True
        if lines and not mutant.function:
            return True  # a constant of the module: whoever runs any of it
        if mutant.function and not self._is_declared(mutant):
            return False
        users = self.imports.get(mutant.path, set())
        return any(path in one["lines"] for path in users) or any(k.partition(":")[0] in users for k in one["kernels"])

    @staticmethod
    def _is_declared(mutant: Mutant) -> bool:
        """A field of a class, which is run when its module is read."""
        return mutant.function.rpartition(".")[2][:1].isupper()

    def others(self, names: list[str]) -> list[str]:
        """The other tests of the same files."""
        files = {name.partition("::")[0] for name in names}
        return [name for name in self.tests if name.partition("::")[0] in files and name not in names]


def importers(at: Checkout, folder: Path) -> dict[str, set[str]]:
    """Source -> sources of the same room that import it."""
    found: dict[str, set[str]] = {}
    for path in at.sources(folder):
        text = (at.root / path).read_text("utf-8")
        for module, names in re.findall(r"^\s*from (etude[\w.]*) import \(?([^()]*?)\)?$", text, re.MULTILINE):
            for dotted in (module, *(f"{module}.{name.split()[0]}" for name in names.split(",") if name.strip())):
                found.setdefault(f"src/{dotted.replace('.', '/')}.py", set()).add(path)
    return found


def covered(at: Checkout, room: str) -> Covered:
    """Recorded now, as far as a file of tests or the room has changed since."""
    folder, kept = at.room(room), at.cache / f"covering-{room}.json"
    known = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    beside = [path for path in sorted((at.root / "tests").glob("*.py")) if not path.name.startswith("test_")]
    helpers = [*(at.root / path for path in at.sources(folder)), *beside]
    base, found = digest(helpers), Covered(imports=importers(at, folder))
    for file in sorted((at.root / "tests" / room).glob("test_*.py")):
        name, key = str(file.relative_to(at.root)), base + digest([file])
        if known.get(name, {}).get("key") != key:
            print(f"recording what {name} runs", file=sys.stderr, flush=True)
            known[name] = {"key": key, "tests": _recorded(at, name, folder)}
            kept.write_text(json.dumps(known), "utf-8")
        found.tests |= {test: one for test, one in known[name]["tests"].items() if one["ok"] and "lines" in one}
    return found


def digest(paths: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def _recorded(at: Checkout, name: str, folder: Path) -> dict[str, Any]:
    out = at.cache / "recorded.json"
    out.unlink(missing_ok=True)
    _, said = pytest(at, ["-p", "covering", name], kernels=at.kernels, steps=at.steps, ETUDE_COVERING=str(out),
                     ETUDE_ROOM=str(folder))  # fmt: skip
    if not out.exists():
        raise SystemExit(f"{name} cannot be run:\n{said[-2000:]}")
    found: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return found


# -- a mutant ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    mutant: Mutant
    fate: str
    why: str = ""
    """The test that killed it, how many it survived, or why it is equivalent."""

    def record(self) -> dict[str, Any]:
        one = self.mutant
        return {"key": one.key, "path": one.path, "line": one.line, "kind": one.kind, "before": one.before,
                "after": one.after, "fate": self.fate, "why": self.why}  # fmt: skip


def equivalents(at: Checkout) -> dict[tuple[str, str, str], str]:
    """(file, line, changed line) -> why the change changes nothing."""
    path = at.root / "tools" / "equivalent.toml"
    listed = tomllib.loads(path.read_text("utf-8")).get("mutant", []) if path.exists() else []
    return {(one["file"], one["line"], one["changed"]): one["reason"] for one in listed}


def tried(at: Checkout, mutant: Mutant, tests: Covered, stamp: int) -> Outcome:
    first = tests.of(mutant)
    if not first:
        return Outcome(mutant, NO_TEST)
    place = at.tree / mutant.path
    plain, then = place.read_bytes(), place.stat()
    place.write_bytes(mutant.applied(plain))
    os.utime(place, (then.st_mtime + stamp, then.st_mtime + stamp))  # Python tells versions of a file apart by seconds
    try:
        return _judged(at, mutant, tests, first)
    finally:
        place.write_bytes(plain)
        os.utime(place, ns=(then.st_atime_ns, then.st_mtime_ns))


def _judged(at: Checkout, mutant: Mutant, tests: Covered, first: list[str]) -> Outcome:
    ran, others = 0, tests.others(first)
    with tempfile.TemporaryDirectory(dir=at.cache) as place:
        own = {name: Path(place) / name for name in ("kernels", "steps")}
        for name, folder in own.items():  # files there are replaced, never written to
            shutil.copytree(at.cache / name, folder, copy_function=os.link)
        for names in (first, others):
            some, seconds = _within(names, tests)
            if not some:
                continue
            listed = Path(place) / "tests"
            listed.write_text("\n".join(some), "utf-8")
            code, said = pytest(at, ["-x", f"@{listed}"], timeout_s=LIMIT_S + 3 * seconds, **own)
            if code == -1:
                return Outcome(mutant, KILLED, "the clock")
            if code != 0:
                failed = re.search(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
                return Outcome(mutant, KILLED, failed[1] if failed else said.strip().splitlines()[-1])
            ran += len(some)
    left_out = len(first) + len(others) - ran
    return Outcome(mutant, SURVIVED, f"{ran} tests" + (f", {left_out} too long to run" if left_out else ""))


def _within(names: list[str], tests: Covered) -> tuple[list[str], float]:
    """As many as the limit leaves time for, and what they take."""
    chosen, seconds = [], 0.0
    for name in sorted(names, key=lambda name: tests.tests[name]["seconds"]):
        seconds += tests.tests[name]["seconds"]
        if chosen and seconds > LIMIT_S:
            break
        chosen.append(name)
    return chosen, min(seconds, 2 * LIMIT_S)


# -- the run -----------------------------------------------------------------------------------------------------------


def drawn(at: Checkout, rooms: dict[str, list[str]], count: int, seed: int) -> list[tuple[str, Mutant]]:
    """This many of all mutants of these sources, each as likely as another."""
    text = {path: (at.root / path).read_bytes() for paths in rooms.values() for path in paths}
    every = [(room, one) for room, paths in rooms.items() for path in paths for one in mutants_of(path, text[path])]
    order = random.Random(seed).sample(range(len(every)), len(every))
    picked = islice((n for n in order if every[n][1].parses(text[every[n][1].path])), count)
    return [every[n] for n in sorted(picked)]


def chosen(at: Checkout, given: argparse.Namespace) -> list[tuple[str, Mutant]]:
    """Those of a seed, or the survivors of the last run."""
    paths = {room: [path for path in at.sources(at.room(room)) if path.startswith(given.path)] for room in given.rooms}
    if not given.again:
        return drawn(at, paths, given.count, given.seed)
    last = json.loads(at.last.read_text("utf-8"))["outcomes"]
    keys = {one["key"] for one in last if one["fate"] in (SURVIVED, NO_TEST)}
    every = [(room, one) for room in paths for path in paths[room]
             for one in mutants_of(path, (at.root / path).read_bytes())]  # fmt: skip
    return [(room, one) for room, one in every if one.key in keys]


def shown(outcome: Outcome) -> Iterator[str]:
    one = outcome.mutant
    yield f"{outcome.fate:10} {one.path}:{one.line}  {one.kind}  ({outcome.why})"
    if outcome.fate in (SURVIVED, NO_TEST):
        yield from (f"    -{one.before}", f"    +{one.after}")


def table(outcomes: list[tuple[str, Outcome]]) -> Iterator[str]:
    fates = (KILLED, SURVIVED, NO_TEST, EQUIVALENT)
    yield f"{'room':12}" + "".join(f"{fate:>12}" for fate in fates) + f"{'not noticed':>14}"
    for room in [*dict.fromkeys(room for room, _ in outcomes), "all"]:
        count = Counter(one.fate for name, one in outcomes if room in (name, "all"))
        judged = max(count.total() - count[EQUIVALENT], 1)
        missed = (count[SURVIVED] + count[NO_TEST]) / judged
        yield f"{room:12}" + "".join(f"{count[fate]:12}" for fate in fates) + f"{missed:14.1%}"


def run(at: Checkout, mutants: list[tuple[str, Mutant]]) -> Iterator[tuple[str, Outcome]]:
    """The fate of each. What tests run is recorded first, where that is not known."""
    copy_tree(at)
    tests = {room: covered(at, room) for room in dict.fromkeys(room for room, _ in mutants)}
    known, begin = equivalents(at), int(time.time()) % 100_000
    for number, (room, one) in enumerate(mutants, 1):
        reason = known.get((one.path, one.before, one.after))
        yield room, Outcome(one, EQUIVALENT, reason) if reason else tried(at, one, tests[room], begin + number)


def main(words: list[str] | None = None, at: Checkout = Checkout(Path(__file__).resolve().parent.parent)) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", default=["serve", "fleet", "search"])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--path", default="", help="only sources that begin so")
    parser.add_argument("--again", action="store_true", help="only those that survived the last run")
    parser.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    given = parser.parse_args(words)
    mutants = chosen(at, given)
    if given.list:
        for _, one in mutants:
            print(f"{one.path}:{one.line}  {one.kind}\n    -{one.before}\n    +{one.after}")
        return 0
    outcomes: list[tuple[str, Outcome]] = []
    for room, outcome in run(at, mutants):
        outcomes.append((room, outcome))
        print("\n".join(shown(outcome)), flush=True)
        said = {"seed": given.seed, "outcomes": [o.record() | {"room": r} for r, o in outcomes]}
        at.last.write_text(json.dumps(said, indent=1), "utf-8")
    print("\n".join(["", *table(outcomes)]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
