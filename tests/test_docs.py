"""Pages that are made from the code are up to date."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_example_of_the_costs_page_runs() -> None:
    blocks = (DOCS / "costs.md").read_text().split("```python\n")[1:]
    assert blocks
    for block in blocks:
        exec(block.partition("```")[0], {})


@pytest.mark.parametrize(("name", "maker"), [("data-model.md", "page"), ("systems.md", "systems_page")])
def test_a_page_is_what_the_code_makes(name: str, maker: str) -> None:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (DOCS / name).read_text() == getattr(module, maker)(), "run `make docs`"
