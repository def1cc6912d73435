"""What makes Numba compile sooner changes nothing of what it compiles."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core import ir, targetconfig
from numba.core.compiler import Flags

from etude.kernels import sooner

SAME_CODE = """
import sys
import numba
import numpy as np

def made():
    @numba.njit
    def helper(a, i):
        return a[i] * 3 if i % 2 else a[i - 1] + i

    @numba.njit
    def total(a, b, names):
        found = np.zeros(len(a), np.int64)
        for i in range(len(a)):
            found[i] = helper(a, i) + min(b[i], 2.5)
        found[1:] += np.int64(names.sum())
        return found.max() + len(b[::2])

    return total

def instructions(function):
    total = function(np.arange(5), np.ones(5), np.array([1, 2], np.uint8))
    (text,) = function.inspect_asm().values()
    return total, [line.split()[0] for line in text.splitlines() if line.startswith("\\t")]

before = instructions(made())
from etude.kernels import sooner
sooner.install()
after = instructions(made())
print(before[0] == after[0], before[1] == after[1], len(before[1]))
"""


def run(script: str, cache: Path) -> str:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_the_same_machine_code(tmp_path: Path) -> None:
    same_result, same_code, count = run(SAME_CODE, tmp_path).split()
    assert (same_result, same_code) == ("True", "True")
    assert int(count) > 100


def variables(value: object) -> list[ir.Var]:
    """As Numba has it."""
    if isinstance(value, ir.Var):
        return [value]
    if isinstance(value, ir.Inst):
        return value.list_vars()
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [found for one in inside for found in variables(one)]


def test_the_variables_of_an_instruction() -> None:
    place = ir.Loc("here", 1)
    scope = ir.Scope(None, place)
    a, b, c = (ir.Var(scope, name, place) for name in "abc")
    call = ir.Expr.call(a, [b, c], (("key", a),), place)
    assign = ir.Assign(call, c, place)
    for given in (a, call, assign, [a, (b, {"x": c, "y": 3})], "text", None, {"value": assign}):
        assert sooner._variables_in(assign, given) == variables(given)
    assert {one.name for one in assign.list_vars()} == {"a", "b", "c"}


def test_options_that_say_the_same_are_the_same() -> None:
    plain, spoken, other = Flags(), Flags(), Flags()
    spoken.nrt = plain.nrt  # said, and what it is anyway
    other.nrt = not plain.nrt
    assert plain == spoken
    assert hash(plain) == hash(spoken)
    assert plain != other
    assert spoken != other
    assert targetconfig.TargetConfig.__eq__(plain, 3) is NotImplemented


def test_garbage_is_collected_again_afterwards() -> None:
    with sooner.no_garbage_collection():
        with sooner.no_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError), sooner.no_garbage_collection():
        raise ValueError
    assert gc.isenabled()


INNER = """
import numpy as np
from etude.kernels.compile import kernel

@kernel
def third(a, i):
    if i >= len(a):
        raise IndexError("behind the end")
    return a[i] * 3

@kernel
def second(a, i):
    return third(a, i) + np.array([1, 2, 3])[i % 3]

@kernel
def first(a, i):
    return second(a, i) - 1

def tried(i):
    try:
        return int(first(np.arange(4), i))
    except IndexError as problem:
        return str(problem)

print(tried(2), tried(9), int(second(np.arange(4), 1)), sorted(type(k.inner.overloads[s].library).__name__
      for k in (second, third) for s in k.inner.overloads))
"""


def test_inner_kernels_have_no_machine_code_and_answer(tmp_path: Path) -> None:
    script = tmp_path / "kernels_here.py"
    script.write_text(INNER)
    again = f"import runpy; runpy.run_path({str(script)!r})"
    assert run(again, tmp_path / "cache") == "8 behind the end 5 ['InnerLibrary', 'InnerLibrary']\n"
    # from the cache: 2 * 3 + 3 - 1, the error, 1 * 3 + 2; no inner kernel is looked at
    assert run(again, tmp_path / "cache") == "8 behind the end 5 []\n"
