"""Names that tables of the documentation promise of a module are there."""

import importlib
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
OF_MODULE = re.compile(r"^\|[^|]*\bof `(etude\.[a-z_.]+)`[^|]*\|")


def promised() -> list[tuple[str, str, str]]:
    """(page, module, name): the calls in the first column of tables whose head says of which module they are."""
    found = []
    for page in sorted(DOCS.rglob("*.md")):
        module = ""
        for line in page.read_text("utf-8").splitlines():
            head = OF_MODULE.match(line)
            module = head[1] if head else module if line.startswith("|") else ""
            if module and not head:
                found += [(page.name, module, name) for name in re.findall(r"`(\w+)\(", line.split("|")[1])]
    return found


def test_there_are_such_tables():
    assert ("network.md", "etude.extend.topology", "fat_tree") in promised()


@pytest.mark.parametrize(("page", "module", "name"), promised())
def test_a_name_of_a_table_is_there(page: str, module: str, name: str):
    package, _, last = module.rpartition(".")
    assert callable(getattr(getattr(importlib.import_module(package), last), name))
