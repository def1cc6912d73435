"""A report of every trace in the reference data: sums checked, sizes printed, pages opened in a browser.

    python benchmarks/all_reports.py [--only TEXT] [--out FOLDER] [--shots]

Profiler traces of one run are one job; jobs without times are simulated. `--shots` also opens each page in headless
Chromium in both themes, which must log nothing, and keeps screenshots.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))


import browser

RANK = re.compile(r"[._-]?(?:rank|device)[-_.]?(\d+)")
SYSTEM = "dgx-h100"
ET = re.compile(r"(?:\.\d+)?\.et(?:\.gz|\.zst)?$")
DRAWN = "chakra_official/timeline"
"""A drawing of a run, not a trace."""
REFUSED = ("astra/et/semantics", "official_tests/chakra")
"""Among these are cases made to be refused, and a file with circles: an error with a reason is an answer there."""


@dataclass(frozen=True)
class Input:
    name: str
    paths: tuple[Path, ...]
    """One folder or file, or the profiler traces of the ranks of one run."""


def shared() -> Path:
    for place in (os.environ.get("ETUDE_SHARED"), Path(__file__).resolve().parents[2] / "shared"):
        if place and Path(place).is_dir():
            return Path(place)
    sys.exit("needs the reference data folder ../shared")


def inputs(root: Path) -> Iterator[Input]:
    """Profiler traces by run, then jobs of `.et` files, each by its prefix."""
    from etude.capture.opening import is_profile

    runs: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*.json*")):
        if path.name.endswith((".json", ".json.gz", ".json.zst")) and is_profile(path):
            stem = RANK.sub("", path.relative_to(root).as_posix()).replace("/.", ".")
            if DRAWN not in stem:
                runs.setdefault(re.sub(r"\.json(\.gz|\.zst)?$", "", stem), []).append(path)
    for name, paths in runs.items():
        yield Input(name, tuple(paths))
    jobs: dict[str, Path] = {}
    for path in sorted(p for p in root.rglob("*.et*") if ET.search(p.name)):
        stem = ET.sub("", path.name)
        ranked = path.name != stem + re.sub(r"^\.\d+", "", path.name[len(stem) :])
        jobs.setdefault((path.parent / stem).relative_to(root).as_posix(), path.parent / stem if ranked else path)
    for name, path in jobs.items():
        yield Input(name, (path,))


def opened(source: Input) -> Any:
    """The job of an input."""
    import etude

    if len(source.paths) == 1:
        return etude.open(source.paths[0])
    from etude.capture.ingest import causal, reading

    ranks = [int(m[1]) if (m := RANK.search(p.name)) else i for i, p in enumerate(source.paths)]
    linked = [causal.convert(reading.load_device(p, None), rank=r) for r, p in zip(ranks, source.paths, strict=True)]
    return causal.to_job(source.name.rpartition("/")[2], linked)


def run_of(job: Any) -> Any:
    """The job as recorded or, where no times were, as simulated."""
    if job.timing is not None:
        from etude.model.run import recorded

        return recorded(job)
    from etude.machine import open_system
    from etude.run.simulate.run import simulate

    machine = open_system(SYSTEM)
    return simulate(job, machine.resized(max(len(machine), -(-job.world_size // 8) * 8)))


def checked(page: Any, html: str) -> None:
    """What must hold of every page; the composer has checked the sums."""
    assert len(html) < 5e6, f"{len(html)} bytes"
    text = re.sub(r"<(script|style).*?</\1>", "", html, flags=re.DOTALL)
    assert not re.search(r"\bnan\b|\binf\b|-?9223372036854775808", text, flags=re.IGNORECASE), "a figure is no number"
    assert page.sections
    assert page.verdict


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="inputs whose name holds this text")
    parser.add_argument("--out", type=Path, default=Path("out/reports"))
    parser.add_argument("--shots", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    program = browser.find() if options.shots else None
    if options.shots and program is None:
        print("no Chromium is here, so no screenshots", file=sys.stderr)
    from etude.base.errors import EtudeError
    from etude.model.timing import Origin
    from etude.steps.asked.repetitions import allocated
    from etude.tell.report import device_of
    from etude.tell.report.compose import report
    from etude.tell.view.page import render

    failed = 0
    print(f"{'trace':58} {'ranks':>5} {'nodes':>9} {'s':>6} {'MB':>5}  findings")
    for source in inputs(shared()):
        if options.only not in source.name:
            continue
        began = time.perf_counter()
        try:
            job = opened(source)
            one = source.paths[0] if len(source.paths) == 1 and source.paths[0].is_file() else None
            run = run_of(job)
            simulated = run.timing.origin == Origin.SIMULATED
            page = report(
                run, name=source.name.rpartition("/")[2], allocated=allocated(one) if one else None,
                device=device_of(job, system=SYSTEM if simulated else ""),
            )  # fmt: skip
            html = render(page)
            checked(page, html)
            out = options.out / f"{source.name.replace('/', '__')}.html"
            out.write_text(html, encoding="utf-8")
            spent = time.perf_counter() - began
            if program:
                photograph(program, out)
            told = "; ".join(t.what for t in page.told[:2])
            print(
                f"{source.name:58} {len(job):5} {job.nodes:9,} {spent:6.1f} {len(html) / 1e6:5.2f}  {told}", flush=True
            )
        except EtudeError as problem:
            meant = any(part in source.name for part in REFUSED)
            failed += not meant
            said = str(problem).splitlines()[0]
            print(f"{source.name:58} {'refused' if meant else 'FAILED'}: {said[:200]}", flush=True)
        except Exception as problem:
            failed += 1
            print(f"{source.name:58} FAILED {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            if os.environ.get("ETUDE_DEBUG"):
                raise
    print(f"{failed} failed")
    return min(failed, 1)


def photograph(program: str, page: Path) -> None:
    with browser.Browser(program) as chromium:
        for theme in ("light", "dark"):
            chromium.open(page, theme=theme)
            chromium.screenshot(page.with_suffix(f".{theme}.png"), whole=True)
        assert chromium.problems == [], chromium.problems


if __name__ == "__main__":
    sys.exit(main())
