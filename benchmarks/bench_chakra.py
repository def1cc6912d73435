"""`etude chakra trace_link` and `converter` side by side with the official commands: CPU seconds, peak memory, bytes.

    python benchmarks/bench_chakra.py                              # against figures that were measured before
    python benchmarks/bench_chakra.py --official venv/bin          # the official commands in turn with ours
    python benchmarks/bench_chakra.py --official venv/bin --quick  # without the large capture, which takes them minutes

The official commands are made so (et_replay is not on PyPI; HolisticTraceAnalysis carries it under another name):

    python -m venv venv && venv/bin/pip install mlc-chakra 'pandas<3'
    cd venv/lib/python3*/site-packages && ln -s param_bench/et_replay et_replay

Every command is a process of its own on files that are not packed. Python's compiled files and our compiled kernels
are there before: each command runs once on the smallest capture first. Ours is the median of `--turns`.
"""

from __future__ import annotations

import argparse
import filecmp
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("ETUDE_SHARED", HERE.parent.parent / "shared"))
CAPTURES = ("traces/h200/gpt_train", "traces/h200_pairs/gpt8_b1", "measured/replay/gpt_m_b8", "traces/h200/big")
MEASURED: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "gpt_train": ((3.3, 161), (0.86, 64)),
    "gpt8_b1": ((6.2, 213), (2.2, 110)),
    "gpt_m_b8": ((13.7, 267), (4.1, 196)),
    "big": ((280.0, 2785), (61.1, 4566)),
}
"""CPU seconds and peak MB of the official linker and converter, mlc-chakra 1.0.0, on two cores of x86-64."""


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: float
    peak_mb: float


def run(argv: list[str], environment: dict[str, str], folder: Path) -> Cost:
    """A process of its own, to its end."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(argv, stdout=said, stderr=said, env=environment, cwd=folder)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(argv)}\n{said.read().decode('utf-8', 'replace')[-2000:]}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def commands(official: Path | None, pair: tuple[Path, Path], linked: Path, out: Path) -> tuple[list[str], list[str]]:
    """The linker's and the converter's; ours if `official` is None."""
    link = ["--rank", "0", "--chakra-host-trace", str(pair[0]), "--chakra-device-trace", str(pair[1])]
    convert = ["PyTorch", "--input", str(linked), "--output", str(out)]
    if official is None:
        ours = [sys.executable, "-m", "etude", "chakra"]
        return [*ours, "trace_link", *link, "--output-file", str(linked)], [*ours, "converter", *convert]
    return (
        [str(official / "chakra_trace_link"), *link, "--output-file", str(linked)],
        [str(official / "chakra_converter"), *convert],
    )


def unpacked(name: str, folder: Path) -> tuple[Path, Path]:
    found = []
    for side in ("et", "kineto"):
        path = folder / f"{Path(name).name}_{side}.json"
        with gzip.open(SHARED / f"{name}_{side}.json.gz") as source, path.open("wb") as file:
            shutil.copyfileobj(source, file)
        found.append(path)
    return found[0], found[1]


def measured(official: Path | None, pair: tuple[Path, Path], folder: Path, turns: int) -> tuple[Cost, Cost]:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "pyc")
    paths = environment.pop("PYTHONPATH", "").split(os.pathsep)
    if official is None:
        environment["PYTHONPATH"] = os.pathsep.join(str(Path(path).resolve()) for path in paths if path)
    kind = "official" if official else "ours"
    link, convert = commands(official, pair, folder / f"{kind}.json", folder / f"{kind}.et")
    costs = [(run(link, environment, folder), run(convert, environment, folder)) for _ in range(turns)]
    return tuple(Cost(median(one[k].cpu_s for one in costs), max(one[k].peak_mb for one in costs)) for k in (0, 1))  # type: ignore[return-value]


def show(name: str, what: str, ours: Cost, theirs: Cost | None, size_mb: float) -> None:
    line = f"{name:<10} {what:<10} {size_mb:>8,.0f} {ours.cpu_s:>8.2f} {ours.peak_mb:>8,.0f}"
    if theirs is not None:
        line += f" {theirs.cpu_s:>9.2f} {theirs.peak_mb:>8,.0f}"
        line += f" {theirs.cpu_s / ours.cpu_s:>7.1f} {ours.peak_mb / theirs.peak_mb:>7.2f}"
    print(line, flush=True)


def same(folder: Path) -> bool:
    return all(filecmp.cmp(folder / f"ours.{end}", folder / f"official.{end}", shallow=False) for end in ("json", "et"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--official", type=Path, help="folder of the official commands")
    parser.add_argument("--quick", action="store_true", help="without the large capture")
    parser.add_argument("--turns", type=int, default=3, help="runs of ours")
    args = parser.parse_args()
    official = args.official.resolve() if args.official else None
    wrong = False
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if not (SHARED / f"{CAPTURES[0]}_et.json.gz").exists():
            print(f"{SHARED} is not there: nothing to measure")
            return 0
        first = unpacked(CAPTURES[0], folder)
        for tool in (None, official) if official else (None,):
            measured(tool, first, folder, 1)
        print(f"{'capture':<10} {'command':<10} {'file MB':>8} {'CPU s':>8} {'peak MB':>8}"
              f" {'their CPU':>9} {'peak MB':>8} {'faster':>7} {'memory':>7}")  # fmt: skip
        for capture in CAPTURES[: -1 if args.quick else None]:
            name, pair = Path(capture).name, unpacked(capture, folder)
            ours = measured(None, pair, folder, args.turns)
            theirs: tuple[Cost, Cost] | tuple[None, None] = (None, None)
            if official:
                theirs = measured(official, pair, folder, 1)
                if not same(folder):
                    wrong = True
                    print(f"{name}: OTHER BYTES")
            elif name in MEASURED:
                link, convert = MEASURED[name]
                theirs = Cost(*link), Cost(*convert)
            for what, end, own, other in zip(("trace_link", "converter"), ("json", "et"), ours, theirs, strict=True):
                show(name, what, own, other, (folder / f"ours.{end}").stat().st_size / 1e6)
    if official and not wrong:
        print("all files are the same bytes as theirs")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
