"""Pages have pictures, the files are there and small, and the script draws what is committed."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))
import drawing  # noqa: E402
import pictures  # noqa: E402

MECHANISMS = """index tutorial costs network schedules energy serve fleet search edits tiers data stacks simulate
generate link studies contention models maps placement sections report timeline case-study machines micro synthesis
serving collect replay qualify operators directives communications astra from-astra-sim text-workloads readers anonymise
feeder life-of-a-trace"""
ANALYSES = [page.relative_to(DOCS).as_posix() for page in sorted((DOCS / "analyse").glob("*.md"))]
WITH_PICTURE = ANALYSES + [f"{name}.md" for name in MECHANISMS.split()]
QUICK = (
    "breakdown",
    "idle",
    "kernels",
    "roofline",
    "collective-bandwidth",
    "schedules",
    "maps",
    "placement",
    "machines",
    "collect",
    "qualify",
    "operators",
    "life",
    "claims",
)


@pytest.mark.parametrize("name", WITH_PICTURE)
def test_a_page_has_a_picture(name: str) -> None:
    assert re.search(r"!\[[^\]]{8,}\]\([^)]*pictures/[\w-]+\.(svg|webp)\)", (DOCS / name).read_text())


def test_every_picture_that_is_named_exists_and_is_small() -> None:
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for link in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
            path = (page.parent / link).resolve()
            assert path.is_file(), f"{page.relative_to(ROOT)}: {link}"
            assert path.stat().st_size < 150_000, link


def test_every_drawn_picture_has_a_caption_that_says_how_it_is_drawn() -> None:
    for page in DOCS.rglob("*.md"):
        text = page.read_text()
        for name in re.findall(r"pictures/([\w-]+)\.svg\)", text):
            caption = rf"pictures/{name}\.svg\)\n\n\*[A-Z][^\n]+ \(`python docs/pictures\.py {name}`\)\*\n"
            assert re.search(caption, text), f"{page.relative_to(ROOT)}: {name}"


def test_every_picture_is_used_and_has_its_maker() -> None:
    text = "".join(page.read_text() for page in (ROOT / "README.md", *DOCS.rglob("*.md")))
    for path in pictures.OUT.iterdir():
        assert f"pictures/{path.name}" in text, path.name
        assert path.suffix == ".webp" or path.stem in pictures.all_pictures(), path.name


def test_the_script_draws_what_is_committed() -> None:
    with pictures.workshop():
        for name in QUICK:
            drawn = pictures.all_pictures()[name]()
            assert drawn == (pictures.OUT / f"{name}.svg").read_text(), f"run `python docs/pictures.py {name}`"


def test_lengths_of_bars_are_in_proportion() -> None:
    drawn = drawing.bars("t", [drawing.Bar("a", [("compute", 3.0, "")]), drawing.Bar("b", [("idle", 1.0, "")])])
    widths = [float(w) for w in re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)"', drawn)]
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.01)


def test_ticks_are_round_and_inside() -> None:
    assert drawing.ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert drawing.ticks(80, 155) == [80, 100, 120, 140]
