"""Jobs of production size: opening, info and check, in CPU seconds and peak memory of whole processes.

    python benchmarks/bench_jobs.py [--quick] [--folder DIR]

Makes a folded job (16,384 ranks, 8 traces of 10,000 nodes) and an unfolded one (1,024 ranks, 4 million nodes), writes
them as Parquet and the second also as `.et`, and two traces with a million attributes on one node. Runs the commands
that a user would type, interpreter start and imports included. Each runs twice and the second counts, so that compiled
kernels come from their cache.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import big_jobs

from etude.store import chakra, columns

SRC = Path(__file__).resolve().parent.parent / "src"
sys.path.append(str(SRC.parent / "tests"))


WATCHED = """
import os, sys
code = compile(sys.argv[1], "<job>", "exec")
try:
    exec(code)
finally:
    t = os.times()
    peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
    print(t.user + t.system, int(peak) * 1024, file=open(sys.argv[2], "w"))
"""


def run(code: str) -> tuple[float, int]:
    """(CPU seconds, peak bytes) of a process that runs `code`, as it finds them itself at its end."""
    with tempfile.NamedTemporaryFile() as report:
        done = subprocess.run(
            [sys.executable, "-c", WATCHED, code, report.name],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(SRC)},
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{code}: exit code {done.returncode}\n{done.stderr.decode()}")
        cpu_s, peak_bytes = Path(report.name).read_text().split()
    return float(cpu_s), int(peak_bytes)


def command(*args: str) -> str:
    """The code of a command as a user types it, which must succeed."""
    return f"from etude.surface.cli import main; assert main({list(args)!r}) == 0"


def measure(label: str, code: str) -> tuple[float, int]:
    run(code)
    cpu_s, peak_bytes = run(code)
    print(f"{label:<44}{cpu_s:>10.2f}{peak_bytes / 1e6:>12.0f}")
    return cpu_s, peak_bytes


def _attributes(count: int) -> bytes:
    """An `.et` file with so many attributes on its only node."""
    import chakra_pb

    node = chakra_pb.SCHEMA.Node(id=1, name="x", type=4)
    for i in range(count):
        node.attr.add(name=f"k{i}").int64_val = i
    return chakra_pb.write_messages(chakra_pb.SCHEMA.GlobalMetadata(version="0.0.4"), [node])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the ranks")
    parser.add_argument("--folder", type=Path, help="keep the jobs here and use those that are there")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = a.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        small = 16 if a.quick else 1
        many, some = f"folded, {16_384 // small:,} ranks", f"unfolded, {1_024 // small:,} ranks"
        folded, unfolded, et = folder / "folded", folder / "unfolded", folder / "et"
        if not folded.exists():
            folded.mkdir()
            columns.write_job(big_jobs.folded_job(16_384 // small, 8, 10_000), folded)
        if not unfolded.exists():
            job = big_jobs.unfolded_job(1_024 // small, nodes=3_907)
            unfolded.mkdir()
            columns.write_job(job, unfolded)
            et.mkdir()
            chakra.write_job(job, et)
        print(f"{'':<44}{'CPU s':>10}{'peak MB':>12}")
        measure("nothing but imports", "import etude.capture.opening, etude.store.columns, etude.model.check.whole")
        info = measure(f"{many}: info", command("info", str(folded), "--json"))
        check = measure(f"{many}: check", command("check", str(folded), "--json"))
        print(f"{'  together':<44}{info[0] + check[0]:>10.2f}{max(info[1], check[1]) / 1e6:>12.0f}")
        for label, place in (("Parquet", unfolded), (".et", et)):
            code = f"import etude; job = etude.open({str(place)!r}); assert job.nodes >= {4_000_000 // small}"
            measure(f"{some}, {label}: open", code)
        for label, place in (("Parquet", unfolded), (".et", et)):
            measure(f"{some}, {label}: info", command("info", str(place), "--json"))
            measure(f"{some}, {label}: check", command("check", str(place), "--json"))
        pair = [folder / name for name in ("a.et", "b.et")]
        for path in pair:
            path.write_bytes(_attributes(1_000_000 // small))
        measure(f"{1_000_000 // small:,} attributes on one node: diff", command("diff", *map(str, pair)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
