"""Fails if a built page would load anything from another host: `python docs/check_site.py site`.

Links that a reader may follow are fine; fonts, styles, scripts and pictures from elsewhere are not.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

FOREIGN = re.compile(r"(?:https?:)?//")
CSS_LOAD = re.compile(r"""(?:url\(|@import)\s*["']?((?:https?:)?//[^"')\s]+)""")


class Loads(HTMLParser):
    """Collects the addresses that a browser fetches by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            fetched = name in ("src", "srcset", "poster", "data") or (tag == "link" and name == "href")
            if value and fetched and FOREIGN.match(value):
                self.found.append(value)
            if value and name == "style":
                self.found += CSS_LOAD.findall(value)


def foreign_loads(site: Path) -> list[str]:
    found = []
    for page in sorted(site.rglob("*.html")):
        loads = Loads()
        text = page.read_text(encoding="utf-8")
        loads.feed(text)
        found += [f"{page}: {address}" for address in loads.found]
        found += [f"{page}: {address}" for style in re.findall(r"<style.*?</style>", text, re.DOTALL)
                  for address in CSS_LOAD.findall(style)]  # fmt: skip
    for sheet in sorted(site.rglob("*.css")):
        found += [f"{sheet}: {address}" for address in CSS_LOAD.findall(sheet.read_text(encoding="utf-8"))]
    return found


if __name__ == "__main__":
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        sys.exit(f"{site}: no built site")
    found = foreign_loads(site)
    print("\n".join(found) or f"{site}: loads nothing from elsewhere")
    sys.exit(bool(found))
