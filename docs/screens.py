"""Pictures of report pages, taken in a headless Chromium: `python docs/pictures.py --screens`."""

import base64
import sys
from pathlib import Path

from pictures import do, need

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
