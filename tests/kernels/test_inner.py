"""Kernels that only kernels call have no machine code of their own; kernels of others in the process are compiled as
without Etude."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from etude.kernels.dispatch import _no_garbage_collection


def run(script: str, cache: Path) -> str:
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    return subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_garbage_is_collected_again_afterwards() -> None:
    with _no_garbage_collection():
        with _no_garbage_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError), _no_garbage_collection():
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


OTHERS = """
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

    return total, helper

def seen(made):
    total, helper = made
    answer = total(np.arange(5), np.ones(5), np.array([1, 2], np.uint8))
    (text,) = total.inspect_asm().values()
    kinds = {type(one.library).__name__ for by in (total, helper) for one in by.overloads.values()}
    return answer, kinds, [line.split()[0] for line in text.splitlines() if line.startswith("\\t")]

before = seen(made())
from etude.kernels.compile import kernel
import etude.kernels.dispatch

@kernel
def own(a):
    return np.unique(a).sum()

own(np.arange(3))
after = seen(made())
print(before[0] == after[0], before[1] == after[1] == {"JITCodeLibrary"}, before[2] == after[2], len(before[2]) > 100)
"""


def test_kernels_of_others_are_compiled_as_without_etude(tmp_path: Path) -> None:
    script = tmp_path / "others_here.py"
    script.write_text(OTHERS)
    assert run(f"import runpy; runpy.run_path({str(script)!r})", tmp_path / "cache") == "True True True True\n"
