"""Pages that are made from the code are up to date."""

import importlib.util
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("data-model.md", "page"),
        ("machines.md", "machines_page"),
        ("gallery.md", "gallery_page"),
        ("systems.md", "systems_page"),
    ],
)
def test_a_page_is_what_the_code_makes(name: str, maker: str) -> None:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / name).read_text() == getattr(module, maker)(), "run `make docs`"


def test_the_page_of_systems_has_all_of_them_and_names_commands_that_exist() -> None:
    from etude.decide.study import entries
    from etude.surface.cli import COMMANDS

    text = (DOCS / "systems.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith(("| ---", "| system"))]
    systems = [row for row in rows if not row.startswith("| Chakra") and not row.split(" | ")[1].startswith("`etude")]
    studies = [row for row in rows if "`etude study run " in row]
    assert len(systems) + len(studies) + 1 == 124  # and MLCommons Chakra itself
    for entry in entries():
        assert any(f"`etude study run {entry['name']}`" in row for row in studies), entry["name"]
    for command in re.findall(r"`etude ([^`]+)`", text):
        assert command.split()[0] in COMMANDS, command


def test_the_first_screen_says_how_to_begin() -> None:
    screen = (DOCS.parent / "README.md").read_text().splitlines()[:24]
    for command in ("make demo", "make test", "pip install etude"):
        assert any(command in line for line in screen), command
