"""Compiled kernels are run without Numba, with the same results, and never with code that was compiled for other
arguments, another processor or another kernel."""

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from llvmlite import binding

import etude
from etude.base.errors import UsageError
from etude.kernels import guard, kept, native
from etude.kernels.compile import kernel
from etude.kernels.kinds import NoKindError, kinds, text

KERNELS = """
from typing import NamedTuple
import numpy as np
from etude.kernels.compile import kernel

class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray

@kernel
def nothing(a):
    a[0] += 1

@kernel
def scalars(a, x, yes):
    return a[0], x / 2, not yes, np.int32(7), np.uint8(3)

@kernel
def arrays(n):
    return np.arange(n), np.ones((2, 3), np.float32), np.zeros(2, np.bool_)

@kernel
def record(pair):
    return Pair(pair.second.copy(), pair.first * 2)

@kernel(allocates=False)
def least(pair):
    return min(pair.first[0], pair.second[0])

@kernel
def fails(a, n):
    if n > len(a):
        raise ValueError("longer than the array")
    if n < 0:
        raise IndexError(n)
    return a[n]

@kernel
def twice(a, by=2):
    return least(Pair(a, a)) * by
"""
CALLS = """
import pickle, sys
import numpy as np
from made import Pair, arrays, fails, least, nothing, record, scalars, twice

def failure(*arguments):
    try:
        return fails(*arguments)
    except Exception as problem:
        return type(problem).__name__, problem.args

a, b = np.array([3, 4]), np.array([1.5, 2.5])
nothing(a)
found = [a, scalars(a, 3.0, True), scalars(b, 3, False), arrays(4), record(Pair(a, b)), least(Pair(a, b))]
found += [twice(a, by=3), twice(a, np.int32(5)), failure(a, 5), failure(a, 1), sys.getrefcount(a)]
assert type(record(Pair(a, b))) is Pair and found[3][0].flags.owndata is not None
before = "numba" in sys.modules
found += [failure(a, -1)]  # what is said of it is put together by Numba
pickled = pickle.loads(pickle.dumps(twice))
assert pickled is twice
print(before, found)
"""


def run(folder: Path, code: str, **settings: str) -> str:
    environment = os.environ | {"PYTHONPATH": f"{folder}:{Path(kept.__file__).parents[2]}"}
    environment |= {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"} | settings
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_process_that_finds_all_code_has_the_same_results_without_numba(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(KERNELS)
    compiled = run(tmp_path, CALLS)
    files = {path: path.read_bytes() for path in tmp_path.rglob(f"*{kept.SUFFIX}")}
    assert compiled.startswith("True ") and len(files) == 9  # two for `scalars` and for `twice`
    assert run(tmp_path, CALLS) == compiled.replace("True ", "False ", 1)
    broken, cut, *_ = files
    broken.write_bytes(files[broken].replace(b"ELF", b"FLE"))
    cut.write_bytes(files[cut][:1000])
    assert run(tmp_path, CALLS) == compiled  # they are compiled again
    assert {path: path.read_bytes()[:15] for path in tmp_path.rglob(f"*{kept.SUFFIX}")}.keys() == files.keys()
    assert run(tmp_path, CALLS) == compiled.replace("True ", "False ", 1)
    other = run(tmp_path, CALLS, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="")
    assert other.startswith("True ")
    changed = KERNELS.replace("not yes", "yes")
    (tmp_path / "made.py").write_text(changed)
    assert run(tmp_path, CALLS).startswith("True ")
    assert not set(files) & set(tmp_path.rglob(f"*{kept.SUFFIX}"))  # nothing of the file before is left


ONE = """
import numpy as np
from etude.kernels.compile import kernel

@kernel
def total(a):
    found = 0
    for x in a:
        found += x
    return found
"""
CALL = "import sys; import numpy as np; from one import total; print(total(np.arange(5)), 'numba' in sys.modules)"


@pytest.mark.skipif(not kept.usable(), reason="kernels are kept by Numba here")
def test_processes_that_compile_the_same_kernel_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(ONE)
    with ThreadPoolExecutor(3) as pool:
        assert {told.split()[0] for told in pool.map(lambda _: run(tmp_path, CALL), range(3))} == {"10"}
    assert [path.suffix for path in (tmp_path / "cache").rglob("one.*")] == [kept.SUFFIX]
    assert run(tmp_path, CALL) == "10 False"


POISON = """
import os, pickle, sys
class Bad:
    def __reduce__(self):
        return os.system, (f"touch {sys.argv[1]}",)
sys.stdout.buffer.write(pickle.dumps((Bad(),)))
"""


def _poison(mark: Path) -> bytes:
    return subprocess.run([sys.executable, "-c", POISON, str(mark)], capture_output=True, check=True).stdout


@pytest.mark.parametrize("settings", [{}, {kept.SWITCH: "numba"}])
def test_files_of_others_are_not_run_and_damaged_ones_are_made_again(tmp_path: Path, settings: dict[str, str]) -> None:
    """Pickles with a command, alone and behind the seal of what was there, and whatever a broken disk leaves."""
    (tmp_path / "one.py").write_text(ONE)
    settings = settings | {"XDG_STATE_HOME": str(tmp_path / "state")}
    assert run(tmp_path, CALL, **settings).startswith("10 ")
    files = {path: path.read_bytes() for path in (tmp_path / "cache").rglob("*.*") if path.is_file()}
    assert {path.suffix for path in files} == ({".nbi", ".nbc"} if kept.SWITCH in settings else {kept.SUFFIX})
    bad = _poison(tmp_path / "mark")
    for wrong in (
        lambda whole: bad,
        lambda whole: whole[:32] + bad,
        lambda whole: b"",
        lambda whole: whole[:-1] + b"?",
    ):
        for path, whole in files.items():
            path.write_bytes(wrong(whole))
        assert run(tmp_path, CALL, **settings).startswith("10 ")
        assert not (tmp_path / "mark").exists()
        assert {path.suffix for path in (tmp_path / "cache").rglob("*.*")} == {path.suffix for path in files}
        assert all(len(path.read_bytes()) > 100 for path in files)  # made again
    moved = {path.read_bytes() for path in files}
    (tmp_path / "state" / "etude" / "seal.key").write_bytes(bytes(32))  # another user's
    assert run(tmp_path, CALL, **settings).startswith("10 ")
    now = {path.read_bytes() for path in (tmp_path / "cache").rglob("*.*") if path.is_file()}
    assert now - moved


def test_an_entry_under_another_name_is_not_read(tmp_path: Path) -> None:
    assert kept.write_sealed(str(tmp_path / "a"), b"code")
    assert kept.read_sealed(str(tmp_path / "a")) == b"code"
    (tmp_path / "a").rename(tmp_path / "b")
    assert kept.read_sealed(str(tmp_path / "b")) is None


def test_where_no_key_can_be_kept_nothing_is_kept_and_all_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(ONE)
    (tmp_path / "state").write_text("a file and no folder")
    for _ in range(2):
        assert run(tmp_path, CALL, XDG_STATE_HOME=str(tmp_path / "state")) == "10 True"
    assert not [path for path in (tmp_path / "cache").rglob("*.*") if path.is_file()]


@pytest.mark.skipif(not kept.usable(), reason="kernels are kept by Numba here")
def test_one_switch_leaves_all_to_numba(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(KERNELS)
    own = run(tmp_path, CALLS)
    assert run(tmp_path, CALLS, **{kept.SWITCH: "numba"}) == own
    code = "from etude.kernels import dispatch, kept; print(dispatch.CHANGED, kept.usable())"
    assert run(tmp_path, code, **{kept.SWITCH: "numba"}) == "False False"
    code = "from etude.surface.cli import main; print(main(['info', 'nothing.et']))"
    assert run(tmp_path, code, NUMBA_DISABLE_JIT="1") == "2"


def test_a_piece_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kept.SWITCH, "inner,outer")
    with pytest.raises(UsageError, match="no outer"):
        kept.has_piece("inner")


def test_where_objects_have_another_layout_numba_keeps_the_code(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(ONE)
    run(tmp_path, f"from etude.kernels import guard; guard.as_expected = lambda: False; {CALL}")
    assert [path.suffix for path in sorted((tmp_path / "cache").rglob("one.total*"))] == [".nbc", ".nbi"]


def test_a_kernel_that_outlives_the_modules_is_freed_at_the_end_of_python(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(ONE)
    for _ in range(2):  # compiled, and found
        run(tmp_path, f"{CALL}; sys.longer = total", PYTHONMALLOC="malloc", MALLOC_PERTURB_="255")  # exit code 0


@pytest.mark.skipif(not kept.usable(), reason="kernels are kept by Numba here")
def test_a_command_whose_kernels_are_compiled_does_not_load_numba(tmp_path: Path) -> None:
    etude.convert(etude.generate("gpt2", gpus=1, seq=64).job, tmp_path / "job", to="et")
    code = "import sys; from etude.surface.cli import main; main(['info', sys.argv[1]]); print('numba' in sys.modules)"
    command = [sys.executable, "-c", code, str(tmp_path / "job")]
    found = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1] for _ in range(2)]
    assert found[1] == "False"


class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray


class Other(NamedTuple):
    first: np.ndarray
    second: np.ndarray


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


UNLIKE = [
    1,
    1.0,
    True,
    np.int64(1),
    np.int32(1),
    np.uint64(1),
    np.float32(1),
    np.bool_(True),
    np.zeros(2, np.int64),
    np.zeros(2, np.int32),
    np.zeros(2, np.uint64),
    np.zeros(2, ">i8"),
    np.zeros(2, np.float64),
    np.zeros(2, np.bool_),
    np.zeros(2, [("a", "i8"), ("b", "i8")]),
    np.zeros(2, [("a", "i8"), ("c", "i8")]),
    np.zeros(2, np.dtype([("a", "i1"), ("b", "i8")], align=True)),
    np.zeros(2, [("a", "i1"), ("b", "i8")]),
    _read_only(np.zeros(2, np.int64)),
    np.zeros(4, np.int64)[::2],
    np.zeros((2, 2), np.int64),
    np.zeros((2, 2), np.int64, order="F"),
    np.zeros((4, 4), np.int64)[::2, ::2],
    np.zeros(17, np.uint8)[1:].view(np.int64),
    None,
    (1, None),
    (1, 1),
    (1, 1.0),
    (1, (1,)),
    (1, 1, 1),
    Pair(np.zeros(2), np.zeros(2)),
    Pair(np.zeros(2), np.zeros(2, np.int64)),
    Other(np.zeros(2), np.zeros(2)),
    (np.zeros(2), np.zeros(2)),
]


def test_arguments_that_numba_would_type_otherwise_have_other_kinds():
    found = kinds(tuple(UNLIKE))
    assert len(set(found)) == len({text(kind) for kind in found}) == len(UNLIKE)
    assert kinds((np.zeros(2),)) == kinds((np.ones(3),)) and kinds((5,)) == kinds((-(2**63),))


def test_kinds_are_as_fine_as_the_types_of_numba():
    """Where the kinds of two arguments are the same, so are Numba's types; here by all pairs."""
    from etude.kernels.dispatch import Outer

    dispatcher = Outer(lambda a: a, targetoptions={"nopython": True})
    known = [value for value in UNLIKE if getattr(value, "dtype", np.dtype(int)).isnative]
    empty = [np.zeros(0, np.int64), np.zeros((1, 2), np.int64), np.zeros((1, 2), np.int64, order="F"), np.zeros((0, 2))]
    types: dict[object, object] = {}
    for value in known + empty:
        (kind,) = kinds((value,))
        assert types.setdefault(kind, dispatcher.typeof_pyval(value)) == dispatcher.typeof_pyval(value)


def _guarded(kind: tuple[Any, ...], code: Any) -> Any:
    llvm = native._binding()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc="static", codemodel="jitdefault", jit=True)
    address = native._guard(machine.emit_object(llvm.parse_assembly(guard.SOURCE)))
    return guard.guarded(kind, ctypes.cast(code, ctypes.c_void_p).value, [].append, address).guarded


def test_the_guard_lets_arguments_through_whose_kinds_are_its_own_and_no_others():
    """All pairs, alone and inside a tuple, with a stand-in for the compiled code that says what it was given."""
    kind_of_code = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
    code = kind_of_code(lambda closure, arguments, named: len(arguments))
    values = [*UNLIKE, *((2, value) for value in UNLIKE)]
    for mine in values:
        ask = _guarded(kinds((mine, 1)), code)
        for other in values:
            fits = kinds((mine,)) == kinds((other,))
            assert ask(other, 1) is (2 if fits else guard.REFUSED), (mine, other)
        assert ask(mine) is ask(mine, 1, 1) is ask() is ask(mine, 1.0) is guard.REFUSED


@kernel
def _total(array, by):
    return array.sum() * by


def test_a_whole_number_that_is_too_large_and_a_dtype_that_is_only_equal():
    assert _total(np.arange(3), 2) == 6
    with pytest.raises(OverflowError):
        _total(np.arange(3), 2**70)
    with_note = np.arange(3).astype(np.dtype("int64", metadata={"note": 1}))
    assert with_note.dtype is not np.dtype("int64")
    assert _total(with_note, 2) == 6 and _total(np.arange(4), 1) == 6 and _total(np.arange(3.0), 1) == 3.0


def test_threads_call_a_kernel_of_several_kinds_at_once():
    values = [np.arange(5, dtype=name) for name in ("int64", "float64", "int64", "float64")]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda value: [_total(value, 2) for _ in range(200)], values))
    assert found == [[20] * 200] * 4


class Strange(np.ndarray):
    pass


@pytest.mark.parametrize("value", ["text", 2**63, 1j, [1], np.zeros(2).view(Strange), object()])
def test_an_argument_of_an_unknown_kind_is_left_to_numba(value):
    with pytest.raises(NoKindError):
        kinds((value,))
    with pytest.raises(NoKindError):
        kinds(((1, value),))


def test_a_class_that_its_name_does_not_lead_to_has_no_kind():
    class Pair(NamedTuple):
        first: int

    with pytest.raises(NoKindError):
        kinds((Pair(1),))


def test_what_numba_alone_can_type_is_still_called():
    assert kernel(lambda text: len(text))("four") == 4
    assert kernel(lambda a, b=None: a if b is None else b)(3) == 3


def test_the_key_holds_the_processor_the_versions_and_the_settings(monkeypatch):
    found = {kept.ground()}

    def changed(module, name, value):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            kept._ground.cache_clear()
            found.add(kept.ground())
        kept._ground.cache_clear()

    changed(binding, "get_host_cpu_name", lambda: "another")
    changed(binding, "get_host_cpu_features", binding.FeatureMap)
    changed(np, "__version__", "9.9.9")
    changed(kept, "numba_version", lambda: "0.68.99")
    changed(kept, "source_digest", lambda path: "other")
    monkeypatch.setenv("NUMBA_ENABLE_AVX", "0")
    found.add(kept.ground())
    assert len(found) == 7


def test_code_that_needs_an_unknown_function_is_not_loaded():
    """LLVM would end the process."""
    entry = kept.CompiledEntry("name", b"", ("no_such_function_anywhere",), (), b"")
    with pytest.raises(native.NotLoadedError):
        native.load(entry, kinds, ())


def test_another_version_of_numba_calls_kernels_as_it_does(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(KERNELS)
    code = (
        "from etude.kernels import kept; kept.NUMBA = '0.1.'; import numpy as np, made; print(made.twice(np.ones(1)))"
    )
    assert run(tmp_path, code) == "2.0"
    code = code.replace("n.ones(1)", "n.ones(1), 2")
    assert run(tmp_path, code) == "2.0"
    assert not list(tmp_path.rglob(f"*{kept.SUFFIX}")) and list(tmp_path.rglob("*.nbc"))


def test_where_nothing_can_be_written_a_kernel_is_compiled_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(KERNELS)
    (tmp_path / "cache").write_text("a file and no folder")
    code = "import numpy as np, made; print(made.twice(np.ones(1), 2))"
    assert run(tmp_path, code, HOME=str(tmp_path / "cache")) == "2.0"
