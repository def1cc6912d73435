"""Mutants: what is changed and what is not, which tests cover a line, and what becomes of them in a small checkout."""

import re
import subprocess
import tomllib
from pathlib import Path

import mutate
import pytest
from mutants import Mutant, mutants_of

ROOT = Path(__file__).resolve().parent.parent


def changes(text: str) -> set[tuple[str, str]]:
    return {(one.kind, one.after) for one in mutants_of("a.py", text.encode())}


def test_every_kind_of_change() -> None:
    assert changes("x = a < b") == {("comparison", "x = a <= b"), ("comparison", "x = a > b")}
    assert changes("x = a * b") == {("arithmetic", "x = a / b"), ("factor", "x = (1000 * (a * b))")}
    assert changes("x = (a) - (b)  # less") == {("arithmetic", "x = (a) + (b) # less")}
    assert changes("x = 3") == {("constant", "x = 4"), ("constant", "x = 2")}
    assert changes("x = 1_000_000") == {("constant", "x = 1000000000")}  # one more would be lost in the noise
    assert changes("x = 0.5") == {("constant", "x = 1.5")}
    assert changes("x = np.maximum(a, b)") == {("swapped", "x = np.minimum(a, b)")}
    assert changes("x = a and b") == {("boolean", "x = a or b")}
    assert changes("x = not a") == {("dropped not", "x = (a)")}
    assert changes("x += a") == {("arithmetic", "x -= a"), ("removed", "pass")}
    assert changes("if a: pass") == {("negated", "if not (a): pass")}
    assert changes("x = a is not b") == {("comparison", "x = a is b")}
    assert changes("x = [y for y in z if y]") == {("negated", "x = [y for y in z if not (y)]")}


def test_what_changes_no_number_stays() -> None:
    assert changes('"""Three words, 4 > 3."""') == set()
    assert changes("def f(a: Literal[3]) -> Literal[4]: ...") == set()
    assert changes('raise ValueError(f"{a + 1} is more than 3")') == set()
    assert changes("@kernel(inline=True)\ndef f(): ...") == set()
    assert changes('x = figure("count", "doc", rare=True)') == set()
    assert changes('x = "a" + b') == set()
    assert changes("if TYPE_CHECKING:\n    x = 3") == set()


def test_a_mutant_differs_in_one_place_and_knows_its_function() -> None:
    text = "class Ünit:\n    def cost(self):\n        return 2 * self.ns\n".encode()
    one = next(one for one in mutants_of("a.py", text) if one.kind == "arithmetic")
    assert (one.line, one.function, one.before, one.after) == (
        3, "Ünit.cost", "return 2 * self.ns", "return 2 / self.ns",
    )  # fmt: skip
    assert one.applied(text) == text.replace(b"2 *", b"2 /")
    moved = next(m for m in mutants_of("a.py", b"\n\n" + text) if m.kind == "arithmetic")
    assert moved.line == 5 and moved.key == one.key


def mutant(line: int, function: str = "") -> Mutant:
    return Mutant("src/a.py", line, "constant", 0, 0, b"", "x = 1", "x = 2", function)


def test_tests_that_cover_a_line() -> None:
    tests = {
        "t.py::slow": {"seconds": 2.0, "lines": {"src/a.py": [3, 4]}, "kernels": []},
        "t.py::quick": {"seconds": 1.0, "lines": {"src/a.py": [4]}, "kernels": ["src/a.py:step"]},
        "u.py::other": {"seconds": 1.0, "lines": {"src/b.py": [9]}, "kernels": []},
    }
    known = mutate.Covered(tests, {"src/a.py": {"src/b.py"}})
    assert known.of(mutant(3, "f")) == ["t.py::slow"]
    assert known.of(mutant(4, "f")) == ["t.py::quick", "t.py::slow"]
    assert known.of(mutant(8, "f")) == []
    assert known.of(mutant(8, "step")) == ["t.py::quick"]  # a line of a kernel: Python does not see it
    assert known.of(mutant(1)) == ["t.py::quick", "u.py::other", "t.py::slow"]  # a constant: whoever imports the file
    assert known.others(["t.py::quick"]) == ["t.py::slow"]


def test_the_same_seed_draws_the_same() -> None:
    at, paths = mutate.Checkout(ROOT), {"serve": ["src/etude/world/serve/fit.py"]}
    first, again, other = (mutate.drawn(at, paths, 5, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == 5


def test_survivors_of_a_checkout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of `2 * a + 1`, tested with a = 0, the factor is not noticed and the sum is; nothing runs the other function."""
    source = tmp_path / "src/etude/toy/sums.py"
    text = "def sums(a):\n    return 2 * a + 1\n\n\ndef unused(a):\n    return -a\n"
    files = {
        source: text,
        tmp_path / "src/etude/__init__.py": "",
        tmp_path
        / "tests/toy/test_sums.py": "from etude.toy.sums import sums\n\ndef test():\n    assert sums(0) == 1\n",
        tmp_path / ".gitignore": ".cache/\n",
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    at = mutate.Checkout(tmp_path)
    assert mutate.main(["toy", "--count", "99"], at) == 0
    said = capsys.readouterr().out
    assert re.search(r"killed +src/etude/toy/sums.py:2  arithmetic  \(tests/toy/test_sums.py::test\)", said)
    assert "survived   src/etude/toy/sums.py:2  factor  (1 tests)\n    -return 2 * a + 1\n    +return (1000 *" in said
    assert "no test    src/etude/toy/sums.py:6  sign" in said
    assert source.read_text() == text == (at.tree / "src/etude/toy/sums.py").read_text()


def test_a_room_inside_another_is_drawn_with_its_own_tests(tmp_path: Path) -> None:
    for name in ("src/etude/world/a.py", "src/etude/world/plain/b.py", "src/etude/world/serve/c.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for room in ("world", "serve"):
        (tmp_path / "tests" / room).mkdir(parents=True)
    at = mutate.Checkout(tmp_path)
    assert at.sources(at.room("world")) == ["src/etude/world/a.py", "src/etude/world/plain/b.py"]
    assert at.sources(at.room("serve")) == ["src/etude/world/serve/c.py"]


def test_equivalent_mutants_are_mutants_of_lines_that_exist() -> None:
    listed = tomllib.loads((ROOT / "tools/equivalent.toml").read_text("utf-8"))["mutant"]
    for one in listed:
        known = {(m.before, m.after) for m in mutants_of(one["file"], (ROOT / one["file"]).read_bytes())}
        assert (one["line"], one["changed"]) in known, one
        assert len(one["reason"]) > 20, one
