"""Builds the wheel and the sdist, and tries the wheel in an empty environment of every Python that is found.

    python benchmarks/try_wheel.py [--out DIR] [--python PATH ...] [--root FOLDER ...]

Interpreters are those on the path and of pyenv, one of each minor version. `--python` names one more interpreter,
`--root` a folder with a whole system in it (of debootstrap, say) in which interpreters are looked for and run with
chroot. A row for each: CPU seconds of pip, of `etude demo` the first time (kernels are compiled) and the second, of
linking the sample and of the report of it. The sdist is installed with the first interpreter and links the sample.
Exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
NEEDED = (
    "tests/test_cli.py", "docs/index.md", "benchmarks/try_wheel.py", "examples/study.yaml", "zensical.toml", ".ci/run",
    "CONTRIBUTING.md", "Makefile", "CITATION.cff", "src/etude/capture/sample/README.md", ".github/workflows/ci.yml",
)  # fmt: skip
"""Files that the sdist must have, one of each kind."""
DATA = (
    "etude/py.typed",
    "etude/capture/sample/gpt.rank0.kineto.json.gz",
    "etude/capture/sample/gpt.rank0.light.json.gz",
    "etude/machine/catalogue/dgx-h100.yaml",
)
"""... and the wheel."""

COLUMNS = ("python", "from", "install", "numba", "version", "demo", "again", "link", "report", "said")
OF_THIS_MACHINE = ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt")
"""Files that pip needs in a system below a folder: its name servers and certificates are those of this machine."""


def run(command: list[str], **options: object) -> tuple[bool, str, float]:
    """(done, the end of what it said, CPU seconds)."""
    before = os.times()
    found = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    told = (found.stdout + found.stderr).strip()
    after = os.times()
    spent = after.children_user - before.children_user + after.children_system - before.children_system
    return found.returncode == 0, told[-2000:], spent


def build(out: Path) -> tuple[Path, Path]:
    """(wheel, sdist), built from the tree in an environment of its own; the wheel from the sdist, as pip would."""
    with tempfile.TemporaryDirectory() as folder:
        python = environment([sys.executable], Path(folder) / "venv")
        for command in (
            [python, "-m", "pip", "install", "-q", "build"],
            [python, "-m", "build", "-o", str(out), str(HERE)],
        ):
            done, told, _ = run(command)
            if not done:
                sys.exit(told)
    return max(out.glob("*.whl"), key=os.path.getmtime), max(out.glob("*.tar.gz"), key=os.path.getmtime)


def environment(python: list[str], folder: Path) -> str:
    done, told, _ = run([*python, "-m", "venv", str(folder)])
    if not done:
        raise RuntimeError(told)
    return str(folder / "bin" / "python")


def missing(wheel: Path, sdist: Path) -> list[str]:
    """What should be in the two and is not."""
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    with zipfile.ZipFile(wheel) as zipped:
        inside = set(zipped.namelist())
    return [name for name in NEEDED if name not in names] + [name for name in DATA if name not in inside]


def interpreters(more: list[str]) -> list[str]:
    """Python 3.11 and newer, on the path and of pyenv, each minor version once."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    names = [
        *more,
        *(f"python3.{minor}" for minor in range(11, 20)),
        *map(str, sorted(pyenv.glob("versions/3.*/bin/python"))),
    ]
    found: dict[tuple[int, ...], str] = {}
    for path in filter(None, map(shutil.which, [*names, sys.executable])):
        done, told, _ = run([path, "-c", "import sys, venv; print(*sys.version_info[:2])"])
        version = tuple(map(int, told.split())) if done else (0,)
        if version >= (3, 11):
            found.setdefault(version, path)
    return [found[version] for version in sorted(found)]


def steps(at: list[str], folder: str, *, of_sdist: bool) -> dict[str, list[str]]:
    """What is tried in an environment that has the package: column of the table -> command; of the sdist less."""
    where = "import etude, pathlib; print(pathlib.Path(etude.__file__).parent / 'capture' / 'sample')"
    sample = run([*at, "-c", where])[1]
    etude = [*at, "-m", "etude"]
    found = {
        "version": [*etude, "--version"],
        "demo": [*etude, "demo", "-o", f"{folder}/demo"],
        "again": [*etude, "demo", "-o", f"{folder}/again"],
        "link": [*etude, "link", sample, "-o", f"{folder}/job"],
        "report": [*etude, "report", f"{folder}/job", "-o", f"{folder}/report.html"],
    }
    return {name: command for name, command in found.items() if not of_sdist or name in ("version", "link")}


def tried(python: list[str], package: str, folder: str) -> dict[str, str]:
    """One row: an empty environment, pip install of the wheel or sdist, and `steps`; nothing behind what failed."""
    said = run([*python, "-c", "import sys; print(sys.version.split()[0])"])[1]
    row = dict.fromkeys(COLUMNS, "") | {"python": said, "from": "wheel" if package.endswith(".whl") else "sdist"}
    at = [*python[:-1], f"{folder}/bin/python"]
    done, told, _ = run([*python, "-m", "venv", folder])
    if done:
        done, told, seconds = run([*at, "-m", "pip", "install", "-q", "--no-compile", package])
        row["install"] = f"{seconds:.0f} s" if done else "failed"
    if done:
        row["numba"] = run([*at, "-c", "import numba; print(numba.__version__)"])[1]
        for column, command in steps(at, folder, of_sdist=row["from"] == "sdist").items():
            done, told, seconds = run(command)
            row[column] = (told.split()[-1] if column == "version" else f"{seconds:.1f} s") if done else "failed"
            if not done:
                break
    row["said"] = "ok" if done else (told.strip().splitlines() or ["no answer"])[-1][:120]
    show(list(row.values()))
    return row


def show(cells: Iterable[str]) -> None:
    print("  ".join(f"{text:<8}" for text in cells).rstrip(), flush=True)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=None, help="keep wheel and sdist here")
    options.add_argument("--python", action="append", default=[], help="one more interpreter")
    options.add_argument("--root", type=Path, action="append", default=[], help="a folder with a system, for chroot")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        out = (given.out or Path(scratch) / "dist").resolve()
        wheel, sdist = build(out)
        left = missing(wheel, sdist)
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB; {sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB")
        print("missing: " + (", ".join(left) or "nothing"))
        show(COLUMNS)
        found = interpreters(given.python)
        rows = [tried([path], str(wheel), f"{scratch}/{number}") for number, path in enumerate(found)]
        for root in given.root:
            rows += in_root(root, wheel)
        rows.append(tried([found[0]], str(sdist), f"{scratch}/sdist"))
    return 1 if left or any(row["said"] != "ok" for row in rows) else 0


def in_root(root: Path, wheel: Path) -> list[dict[str, str]]:
    """The same for the interpreters of a system in a folder."""
    rows = []
    for path in sorted((root / "usr/bin").glob("python3.*")):
        if re.fullmatch(r"python3\.\d+", path.name):
            place = Path("tmp") / f"try-{path.name}"
            shutil.rmtree(root / place, ignore_errors=True)
            (root / place).mkdir(parents=True)
            shutil.copy(wheel, root / place)
            for file in filter(os.path.exists, OF_THIS_MACHINE):
                shutil.copy(file, f"{root}{file}")
            rows.append(
                tried(["chroot", str(root), f"/usr/bin/{path.name}"], f"/{place}/{wheel.name}", f"/{place}/venv")
            )
            shutil.rmtree(root / place, ignore_errors=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
