"""Commands that write, killed at random moments, and two at once: nothing half-written, nothing lost.

    python benchmarks/kill_writers.py [--count 200] [--seed 0] [--only convert,archive]

Each command is first run to its end, which gives the output that counts as whole and the time that it takes. Then,
`--count` times: it is started over an older output with `--force` and ended by SIGKILL or SIGTERM at a random moment.
What is there afterwards must be the older output or the whole one, file by file; of a search, which goes on where it
was, something that the same command without `--force` ends well from; of an archive, one that can be listed. After all
of them one more run must end well and leave nothing else in the folder. `pairs` starts two writers of one place without
`--force`: exactly one may say that it wrote, and what is there must be its output. Exit code 1 if anything is lost.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = {
    "convert": "convert {job} -o {out} --to parquet --force",
    "generate": "generate gpt2 --gpus 2 --seq 64 -o {out} --force",
    "fleet": "fleet train llama3-8b --system dgx-h100 --gpus 64 --days 2 -o {out} --force",
    "search": "search gpt2 --system dgx-h100 --gpus 4 -o {out} --force",
    "archive": "archive add {job} --into {out} --system dgx-h100",
}
"""What each writes at `{out}`. An archive grows, and holds its older runs afterwards."""


def etude(command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "etude", *command.split()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def content(folder: Path) -> dict[str, str]:
    """Of every file below; logs and indexes that hold times are known by their name alone."""
    if folder.is_file():
        return {"": hashlib.sha256(folder.read_bytes()).hexdigest()}
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def whole(command: str, out: Path) -> tuple[dict[str, str], float]:
    start = time.perf_counter()
    process = etude(command)
    _, told = process.communicate()
    if process.returncode:
        raise SystemExit(f"{command}: {told}")
    return content(out), time.perf_counter() - start


def killed(name: str, folder: Path, job: Path, count: int, draw: random.Random) -> int:
    """How many of the outputs are neither the older one nor the whole one."""
    out = folder / name
    command = COMMANDS[name].format(job=job, out=out)
    whole(command, out)  # compiles what it needs
    older, seconds = whole(command, out)
    wrong = ended = 0
    for _ in range(count):
        before = content(out)
        process = etude(command)
        time.sleep(draw.uniform(0.05, 1.1) * seconds)
        os.killpg(process.pid, draw.choice((signal.SIGKILL, signal.SIGTERM)))
        _, told = process.communicate()
        now = content(out)
        ended += process.returncode == 0
        if name == "archive":
            lost = [path for path in before if path not in now]
            good = not lost and etude(f"archive list --in {out}").wait() == 0
        elif name == "search":
            good = not etude(command.replace(" --force", "")).wait() and content(out).keys() == older.keys()
        else:
            good = now == before or now.keys() == older.keys()
        if not good or "Traceback" in told:
            wrong += 1
            print(f"  {name}: {sorted(before.items() ^ now.items())[:4]} {told[-300:]}", flush=True)
    last, _ = whole(command, out)
    left = [path.name for path in folder.iterdir() if path != out and path.name.startswith(".")]
    if left or (name != "archive" and last.keys() != older.keys()):
        wrong += 1
        print(f"  {name}: left {left}")
    print(f"{name:10} {count} killed, {ended} of them had ended; wrong: {wrong}", flush=True)
    return wrong


def pairs(folder: Path, count: int, draw: random.Random) -> int:
    wrong = both = 0
    for number in range(count):
        out = folder / f"pair{number}"
        models = ("gpt2", "bert-large")
        commands = [f"generate {model} --gpus 1 --seq 64 -o {out}" for model in models]
        processes = []
        for command in commands:
            processes.append(etude(command))
            time.sleep(draw.uniform(0, 0.05))
        codes = [process.communicate() and process.returncode for process in processes]
        both += codes.count(0) == 2
        if codes.count(0) != 1 or not content(out):
            wrong += 1
            print(f"  pairs: exit codes {codes}")
        shutil.rmtree(out, ignore_errors=True)
    print(f"{'pairs':10} {count} of two writers, {both} where both wrote; wrong: {wrong}", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="of " + ", ".join([*COMMANDS, "pairs"]))
    given = parser.parse_args()
    chosen = given.only.split(",") if given.only else [*COMMANDS, "pairs"]
    draw = random.Random(given.seed)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        whole(f"generate gpt2 --gpus 2 --seq 64 -o {job}", job)
        for name in chosen:
            place = Path(folder) / f"of {name}".replace(" ", "-")
            place.mkdir()
            wrong += pairs(place, given.count, draw) if name == "pairs" else killed(name, place, job, given.count, draw)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
