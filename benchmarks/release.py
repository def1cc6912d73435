"""Every benchmark once, in one table: what is claimed, the figure, what it is held to, the command, CPU seconds.

    python benchmarks/release.py run [--out out/release] [--only NAME ...] [--kind exact] [--nice 15] [--wait 4]
    python benchmarks/release.py table [--out out/release] [--write]

`release.toml` has a row for each: the command, how its figure is read from what it prints, and the bar. `run` starts
one process at a time at low priority with a limit of CPU time, and keeps what it printed below the folder; what ran
with the same sources is not run again. `table` prints the table of what is there, and with `--write` puts it into
docs/benchmarks.md. A command that failed, ran out of time or printed no figure says so in its row. Exit code 1 if a
bar was missed or a command failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- made by benchmarks/release.py: begin -->", "<!-- made by benchmarks/release.py: end -->"
STOPPED = -9
WAIT = 4
"""Seconds by the clock for each CPU second of a limit, since other work may run beside it; `--wait` says another."""
COLUMNS = ("claim", "figure", "bar", "command", "CPU s")
BECAME = ("held", "ran", "missed", "failed", "not run", "recorded")
KINDS = {
    "exact": "Equal, or within a bound",
    "accuracy": "Errors against measurements",
    "speed": "Speed, memory and size",
    "recorded": "Recorded elsewhere, not run here",
}
COMPARE = {"<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b, "==": lambda a, b: a == b}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row. `read` are regular expressions whose named groups `figure` shows and `hold` compares."""

    name: str
    kind: str
    claim: str
    command: str
    sample: str = ""
    """What of the whole benchmark this command is; nothing if it is all of it."""
    read: list[str] = field(default_factory=list)
    figure: str = ""
    bar: str = ""
    hold: list[str] = field(default_factory=list)
    limit_s: int = 600
    """CPU seconds that each process of the command may take."""
    last: str = ""
    """The last figure and its date, which stands in the row when the command was not run."""
    needs: str = ""
    """A file or folder without which the command is not run."""


@dataclass(frozen=True)
class Outcome:
    """What one command did: exit code (STOPPED: out of time), CPU and wall seconds, sources and load it ran with."""

    rc: int
    cpu_s: float
    wall_s: float
    load: float
    date: str
    commit: str
    key: str
    machine: str


def claims() -> list[Claim]:
    """The rows of release.toml, in their order there, which is the order in which they run."""
    rows = [Claim(**row) for row in tomllib.loads((HERE / "release.toml").read_text("utf-8"))["claim"]]
    if unknown := [row.name for row in rows if row.kind not in KINDS]:
        raise SystemExit(f"release.toml: `{unknown[0]}` has an unknown kind; known: {', '.join(KINDS)}")
    return rows


def sources(claim: Claim) -> str:
    """Digest of the package, of the script and of the command: the same digest, the same run."""
    script = next((ROOT / word for word in shlex.split(claim.command) if word.endswith(".py")), None)
    found = hashlib.sha256(claim.command.encode())
    for path in [*sorted((ROOT / "src").rglob("*")), *([script] if script else [])]:
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def outcome(folder: Path, claim: Claim) -> tuple[Outcome, str] | None:
    """(what the last run did, what it printed), if there was one."""
    place = folder / f"{claim.name}.json"
    if not place.is_file():
        return None
    return Outcome(**json.loads(place.read_text())), (folder / f"{claim.name}.txt").read_text(errors="replace")


def prepare(limit_s: int, nice: int) -> None:
    """Priority and limit of CPU time of the process that is about to run the command. Linux may weigh whole sessions
    against each other (autogroup); the command has one of its own, which stands back as well."""
    os.nice(max(0, nice - os.nice(0)))
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 5))


def carry_out(claim: Claim, folder: Path, nice: int = 15, wait: int = WAIT) -> Outcome:
    """Runs the command with that niceness in a process group of its own, which is ended at its limit of CPU time, or
    when `wait` times as much has passed by the clock."""
    variables = {"ETUDE_SHARED": str(ROOT.parent / "shared")} | os.environ
    variables |= {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "160"}
    words = [os.path.expandvars(word) if word != "python" else sys.executable for word in shlex.split(claim.command)]
    while "=" in words[0]:
        name, _, variables[name] = words.pop(0).partition("=")
    load, before, begun = os.getloadavg()[0], time.perf_counter(), os.times()
    with (folder / f"{claim.name}.txt").open("w") as out:
        process = subprocess.Popen(
            words, cwd=ROOT, env=variables, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=lambda: prepare(claim.limit_s, nice),
        )  # fmt: skip
        try:
            rc = process.wait(wait * claim.limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            rc = STOPPED
    ended = os.times()
    cpu_s = ended.children_user - begun.children_user + ended.children_system - begun.children_system
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    return Outcome(
        rc, round(cpu_s, 1), round(time.perf_counter() - before, 1), round(load, 1),
        time.strftime("%Y-%m-%d", time.gmtime()), commit.strip(), sources(claim), machine,
    )  # fmt: skip


def run(folder: Path, only: list[str], kind: str, nice: int = 15, wait: int = WAIT) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    for claim in claims():
        if claim.kind == "recorded" or (only and claim.name not in only) or (kind and claim.kind != kind):
            continue
        known = outcome(folder, claim)
        if known and known[0].key == sources(claim) and known[0].rc == 0:
            print(f"{claim.name}: ran before with the same sources", flush=True)
            continue
        if claim.needs and not Path(os.path.expandvars(claim.needs)).exists():
            print(f"{claim.name}: not run, {claim.needs} is not here", flush=True)
            continue
        done = carry_out(claim, folder, nice, wait)
        (folder / f"{claim.name}.json").write_text(json.dumps(asdict(done), indent=1) + "\n")
        print(f"{claim.name}: exit code {done.rc}, {done.cpu_s} CPU s, {done.wall_s} s", flush=True)
    return 0


def figures(claim: Claim, text: str) -> dict[str, str]:
    """The named groups of every pattern, each of its last match; of a pattern without a match none."""
    found: dict[str, str] = {}
    for pattern in claim.read:
        matches = list(re.finditer(pattern, text, re.M))
        if matches:
            found |= {name: value.strip() for name, value in matches[-1].groupdict().items() if value is not None}
    return found


def number(text: str) -> float:
    return float(text.replace(",", "").rstrip("%x"))


def missed(claim: Claim, found: dict[str, str]) -> list[str]:
    """Bars that the figures do not meet."""
    lines = []
    for line in claim.hold:
        name, sign, bar = line.split()
        if name not in found or not COMPARE[sign](number(found[name]), number(found.get(bar, bar))):
            lines.append(line)
    return lines


def shown(claim: Claim, done: Outcome, text: str) -> tuple[str, str]:
    """(the figure of a row, what became of it: held, ran, missed or failed; `ran` has no bar that is compared)."""
    found = figures(claim, text)
    if done.rc in (STOPPED, -signal.SIGXCPU):
        return f"**stopped** after {done.cpu_s:.0f} CPU s, {done.wall_s:.0f} s by the clock", "failed"
    try:
        figure = claim.figure.format(**found) or "ran to its end"
    except KeyError as missing:
        return f"**no figure**: `{missing.args[0]}` was not printed", "failed"
    if done.rc:
        return f"**failed** with exit code {done.rc}: {figure}", "failed"
    if bad := missed(claim, found):
        return f"{figure}; **missed**: {'; '.join(bad)}", "missed"
    return figure, "held" if claim.hold else "ran"


def row_of(claim: Claim, folder: Path, usual: str) -> tuple[dict[str, str], str]:
    """(cells of a row, what became of it); a row that ran with another commit than `usual` says so."""
    command = f"`{claim.command}`" + (f" ({claim.sample})" if claim.sample else "")
    row = {"claim": claim.claim, "figure": claim.figure, "bar": claim.bar, "command": command, "CPU s": ""}
    if claim.kind == "recorded":
        return row, "recorded"
    known = outcome(folder, claim)
    if not known:
        return row | {"figure": "**not run**" + (f"; last: {claim.last}" if claim.last else "")}, "not run"
    figure, became = shown(claim, *known)
    figure += f" (commit {known[0].commit})" if known[0].commit != usual else ""
    return row | {"figure": figure, "CPU s": f"{known[0].cpu_s:,.0f}"}, became


def head(ran: list[Outcome], became: Counter[str], usual: str) -> str:
    """What ran, where, and how it went."""
    counts = ", ".join(f"{became[what]} {what}" for what in BECAME if became[what])
    counts += " (held: a figure was compared with its bar; ran: exit code 0, nothing else is compared)"
    if not ran:
        return f"{sum(became.values())} rows: {counts}.\n"
    loads, dates = [done.load for done in ran], sorted(done.date for done in ran)
    days = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return (
        f"{sum(became.values())} rows: {counts}. {ran[0].machine}, other work beside it (load {min(loads):.0f} to "
        f"{max(loads):.0f}), {days}; sources of commit {usual} unless a row "
        f"says another. Seconds of CPU time grow with the load: ratios are of one run.\n"
    )


def table(folder: Path) -> tuple[str, Counter[str]]:
    """(the block of the page, how many rows became what)."""
    ran = [known[0] for claim in claims() if claim.kind != "recorded" and (known := outcome(folder, claim))]
    usual = Counter(done.commit for done in ran).most_common(1)[0][0] if ran else ""
    became: Counter[str] = Counter()
    parts = []
    for kind, title in KINDS.items():
        rows = []
        for claim in (claim for claim in claims() if claim.kind == kind):
            row, what = row_of(claim, folder, usual)
            rows.append(row)
            became[what] += 1
        cells = [[text.replace("|", "\\|") for text in row.values()] for row in rows]
        lines = [list(COLUMNS), [*["---"] * 4, "---:"], *cells]
        parts.append(f"\n### {title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n")
    return head(ran, became, usual) + "".join(parts), became


def write(text: str) -> None:
    """Puts the block between its marks in the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "release", help="where outputs are kept")
    parser.add_argument("--only", nargs="*", default=[], help="names of rows")
    parser.add_argument("--kind", default="", choices=["", *KINDS], help="rows of this kind alone")
    parser.add_argument("--nice", type=int, default=15, help="how far commands stand back for other work, 0 to 19")
    parser.add_argument("--wait", type=int, default=WAIT, help="seconds by the clock for each CPU second of a limit")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    given = parser.parse_args()
    if given.what == "run":
        return run(given.out, given.only, given.kind, given.nice, given.wait)
    text, became = table(given.out)
    print(text)
    if given.write:
        write(text)
    return 1 if became["missed"] or became["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
