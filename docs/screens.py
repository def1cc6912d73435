"""Pictures of report pages and of the studio, taken in a headless Chromium: `python docs/pictures.py --screens`."""

import base64
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pictures import do, need

if TYPE_CHECKING:
    from browser import Browser

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))


def take(out: Path) -> None:
    """Writes report.webp: the first screen of the report of the embedded recording."""
    from browser import Browser, find

    program = find()
    if program is None:
        raise SystemExit("no Chromium: the pictures of pages stay as they are")
    do(f"report {need('llama')} --timing {need('slow.parquet')} --ran-on h100 -o slow.html "
       '--title "Llama 3 8B on 16 GPUs, one of them slow"')  # fmt: skip
    do(f"report {need('job')} --ran-on h200 --title 'A small GPT on an H200' -o report.html")
    with Browser(program) as browser:
        for name in ("report", "slow"):
            browser.open(Path(f"{name}.html"), width=1200, height=900)
            shot = browser.send("Page.captureScreenshot", format="webp", quality=80)
            (out / f"{name}.webp").write_bytes(base64.b64decode(shot["data"]))
        take_studio(browser, out)


VIEWS = {
    "studio-timeline": ("timeline", 1280, "light"),
    "studio-overview": ("overview", 1280, "dark"),
    "studio-change": ("change", 1280, "light"),
    "studio-narrow": ("change", 400, "dark"),
    "studio-narrow-light": ("timeline", 400, "light"),
    "studio-flows": ("timeline", 2560, "light"),
    "studio-compare": ("compare", 2560, "dark"),
}
"""Picture -> view of the studio, width and theme."""
MORE = {
    "studio-flows": {
        "timeline": {"ranks": [0, 1, 2, 3], "t0": 1_000_000, "t1": 1_700_000, "flows": True, "counter": "power"}
    },
    "studio-compare": {
        "knobs": {"bandwidth": 0.25, "kernels": 1.5},
        "compare": {"ranks": [0, 1, 2, 3], "t0": 1_000_000, "t1": 1_600_000, "changes": True},
    },
}
"""What else a picture's link says."""
DONE = {
    "timeline": "!!window.studio?.timeline?.data && !window.studio.timeline.waits",
    "overview": "document.querySelector('.findings, .found .empty') !== null",
    "compare": "document.querySelectorAll('.why table').length > 2",
    "change": "document.querySelector('main').dataset.ready === 'true'",
}


def take_studio(browser: "Browser", out: Path) -> None:
    """Writes studio-*.webp: views of the studio on a small job, two knobs turned."""
    from etude.steps.asked.runs import RunSource
    from etude.tell.studio import StudioServer, StudioSession
    from etude.tell.studio.session import StudioRun

    do("generate gpt2 --gpus 8 --tp 2 --seq 256 --steps 3 -o studio-job")
    server = StudioServer(StudioSession((StudioRun.of(RunSource(Path("studio-job"), "dgx-h100")),)))
    server.start()
    for name, (view, width, theme) in VIEWS.items():
        state = quote(
            json.dumps({"view": view, "theme": theme, "knobs": {"bandwidth": 2, "kernels": 1.5}} | MORE.get(name, {}))
        )
        browser.send("Emulation.setDeviceMetricsOverride", width=width, height=760, deviceScaleFactor=1, mobile=False)
        browser.send("Page.navigate", url="about:blank")
        browser.send("Page.navigate", url=f"{server.address}#{state}")
        browser.wait(f"document.documentElement?.dataset.ready === 'true' && ({DONE[view]})")
        if "timeline" in MORE.get(name, {}):
            browser.wait("window.studio.timeline.flows && window.studio.timeline.counts")
        browser.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        shot = browser.send("Page.captureScreenshot", format="webp", quality=70)
        (out / f"{name}.webp").write_bytes(base64.b64decode(shot["data"]))
    server.stop()
