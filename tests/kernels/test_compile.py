"""What lies in the cache of compiled kernels is used while it holds, and no longer."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core import config, types

import etude
from etude.kernels import digest, kept
from etude.kernels.compile import kernel

ELSEWHERE = """
from typing import NamedTuple
import numpy as np
from etude.kernels.compile import kernel

FACTOR = 3
TABLE = np.array([10, 20])

class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray

@kernel
def picked(pair):
    return pair.first[0]
"""
USER = """
from etude import elsewhere
from etude.elsewhere import TABLE, picked
from etude.kernels.compile import kernel

@kernel
def total(pair):
    return picked(pair) * elsewhere.FACTOR + TABLE[0]
"""
RUN = """
import os
import sys
import numba
import numpy as np

numba.njit(lambda a: a[0])(np.array([1]))  # what Numba does once in a process is done

def run():
    from etude import elsewhere, user
    from etude.kernels.first_use import told_of_compiling

    names = []
    with told_of_compiling(lambda name, seconds: names.append(name)):
        pair = getattr(elsewhere, "Pair", None) or elsewhere.Couple
        found = user.total(pair(np.array([1]), np.array([2])))
    print(found, *names, flush=True)

for _ in sys.stdin:  # each time in a process that has Numba and nothing of the package
    if os.fork() == 0:
        run()
        os._exit(0)
    if os.wait()[1]:
        sys.exit("failed")
"""


class Package:
    """A package that has the kernels' own room and two modules, one of which takes things from the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = Path(etude.__file__).parent
        shutil.copytree(source / "kernels", folder / "etude" / "kernels")
        (folder / "etude" / "base").mkdir()
        for name in ("errors.py", "faces.py", "seals.py"):
            shutil.copy(source / "base" / name, folder / "etude" / "base")
        (folder / "etude" / "base" / "__init__.py").write_text("")
        (folder / "etude" / "__init__.py").write_text("")
        (folder / "etude" / "user.py").write_text(USER)
        self.change("", "")
        environment = os.environ | {
            "PYTHONPATH": str(folder),
            "NUMBA_CACHE_DIR": str(folder / "cache"),
            "PYTHONDONTWRITEBYTECODE": "1",  # bytecode of a file that changes within a second would be used again
        }
        command = [sys.executable, "-u", "-c", RUN]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, bufsize=1)

    def change(self, old: str, new: str) -> None:
        (self.folder / "etude" / "elsewhere.py").write_text(ELSEWHERE.replace(old, new) if old else ELSEWHERE)

    def run(self) -> str:
        """What the kernel returns, and the kernels that had to be compiled for it."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        answer = self.process.stdout.readline()
        assert answer, "failed; what it said is above"
        return answer.strip()


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    made = Package(tmp_path_factory.mktemp("package"))
    assert made.run() == "13 total"
    yield made
    made.process.communicate()


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("FACTOR = 3", "FACTOR = 4", "14"),
        ("[10, 20]", "[11, 20]", "14"),
        ("pair.first[0]", "pair.second[0]", "16"),
        ("first: np.ndarray\n    second: np.ndarray", "second: np.ndarray\n    first: np.ndarray", "16"),
        ("Pair(", "Couple(", "13"),
        ("@kernel", "@kernel(allocates=False)", "13"),
    ],
)
def test_what_a_kernel_takes_from_another_module_is_noticed(package, old, new, found):
    """The kernel's own file stays as it is, and so does the file of its compiled code."""
    package.change("", "")
    package.run()
    assert package.run() == "13"
    package.change(old, new)
    assert package.run().split()[:2] == [found, "total"]
    assert package.run() == found


def test_what_a_kernel_does_not_take_changes_nothing(package):
    package.change("", "")
    package.run()
    package.change("FACTOR = 3", "FACTOR = 3\nOTHER = 5")
    assert package.run() == "13"


def test_code_of_another_level_of_optimization_is_kept_apart(monkeypatch):
    """What a run of the tests compiles in less time is not what a command is to use."""

    cache, codegen = _outer.dispatcher._cache, _outer.dispatcher.targetctx.codegen()

    def key(level: int):
        monkeypatch.setattr(config, "OPT", level)
        return cache._index_key((types.int64,), codegen), kept.ground()

    for of_numba_and_ours in zip(key(3), key(1), key(3), key(1), strict=True):
        best, other, best_again, other_again = of_numba_and_ours
        assert best != other and best == best_again and other == other_again


LIMIT = 5
PARTS = (np.arange(2000), 1)


def _inner(x, step=1):
    return x + step + LIMIT


@kernel
def _outer(x):
    return _inner_kernel(x) + PARTS[1]


_inner_kernel = kernel(_inner)


def test_the_key_of_a_kernel_holds_its_constants_through_other_kernels(monkeypatch):
    monkeypatch.setattr(digest, "PACKAGE", __name__.partition(".")[0])
    before = digest.taken(_outer)
    assert digest.taken(_outer) == before
    monkeypatch.setitem(globals(), "LIMIT", 6)
    assert digest.taken(_outer) != before


def test_the_key_of_a_kernel_holds_defaults_and_all_of_a_long_array(monkeypatch):
    before = digest.taken(_outer)
    monkeypatch.setattr(_inner, "__defaults__", (2,))
    assert digest.taken(_outer) != before
    monkeypatch.undo()
    changed = np.arange(2000)
    changed[1000] = 0
    monkeypatch.setitem(globals(), "PARTS", (changed, 1))
    assert digest.taken(_outer) != before


def test_a_division_by_zero_gives_what_numpy_gives():
    divide = kernel(lambda a, b: a / b)
    assert divide(1.0, 0.0) == np.inf


def test_what_only_kernels_call_has_no_entry_for_python():
    """And one that Python calls too has both."""
    add = kernel(lambda a, b: a + b)
    twice = kernel(lambda a: add(a, a))
    assert twice(2) == 4
    assert not add.signatures and len(add.inner.signatures) == 1
    assert add(2, 3) == 5
    assert len(add.signatures) == len(add.inner.signatures) == 1


def test_kernels_load_no_linear_algebra_and_a_product_of_matrices_still_compiles():
    code = """
import sys, numpy as np
from etude.kernels.compile import kernel
assert "scipy.linalg" not in sys.modules
import numba
print(numba.njit(lambda a: a @ a)(np.full((2, 2), 3.0)).tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[[18.0, 18.0], [18.0, 18.0]]"
