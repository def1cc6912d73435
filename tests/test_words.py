"""Texts of the package, the gallery and the pages are in plain engineering English: none has a word of these lists."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "etude"
PAGES = [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

NEVER = re.compile(
    r"\bfor ever\b|\btorn\b|\bits likes\b|\bnought\b|manieth|\blaid down\b|beside one another|\bleaves? (it )?away\b"
    r"|\bis no multiple\b|\bno way from\b|\bwithout a word\b|(?<!-)\ball along\b|\bin the mean\b|\bwho wants\b"
    r"|\bstands out\b"
)
"""Nowhere: docstrings, messages, help texts, studies, pages."""

NOT_SAID = re.compile(
    r"\b(told|tells?|stands?|lies|lie|nobody|beside|so many|so often|held against|cannot be)\b(?!-)(?! [a-z])"
    r"|\b(told|lies|lie|nobody|beside|so often|held against)\b"
)
"""Nor in what a user is shown: messages, help texts, findings."""

NOT_EXPLAINED = re.compile(
    r"(?<!`)\b(told|tells|nobody|so often|so many(?! (?:that|are))|under way|an? row an? [a-z]+"
    r"|g[ai]ves? way|behind one another)\b"
)
"""Nor in docstrings and comments. NOBODY is a constant."""

NOT_IN_STUDIES = re.compile(
    r"\b(nobody|beside|under way|so many|anew|after a look|told|tells|stands?|lies|lie|held against|on the mean)\b",
    re.I,
)
"""Nor in the texts of studies: title, description and checks; names of runs and metrics may."""

ALLOWED = {"Nobody"}


def texts(path: Path) -> Iterator[tuple[int, bool, str]]:
    """Line, whether it is a docstring, and the text, of texts with a blank in them; of f-strings what is fixed."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {
        id(line.value)
        for holder in nodes
        if isinstance(holder, holders)
        for line in holder.body
        if isinstance(line, ast.Expr)
    }
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, id(node) in docs, node.value


def comments(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every comment of a file in which one may have such a word: to find comments is slow."""
    text = path.read_text()
    if not any(NOT_EXPLAINED.search(line.partition("#")[2]) for line in text.splitlines()):
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("room", sorted(p.name for p in PACKAGE.iterdir() if p.is_dir() or p.suffix == ".py"))
def test_texts_of_the_package(room: str) -> None:
    place = PACKAGE / room
    found: list[str] = []
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        for line, is_doc, text in texts(path):
            words = NOT_EXPLAINED if is_doc else NOT_SAID
            matches = (*NEVER.finditer(text), *words.finditer(text))
            found += [f"{path.relative_to(ROOT)}:{line}: {match[0]}" for match in matches if match[0] not in ALLOWED]
        for line, text in comments(path):
            found += [f"{path.relative_to(ROOT)}:{line}: {match[0]}" for match in NOT_EXPLAINED.finditer(text)]
    assert found == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_pages(path: Path) -> None:
    assert [match[0] for match in NEVER.finditer(path.read_text())] == []


def test_studies() -> None:
    studies = sorted((PACKAGE / "decide" / "study" / "gallery").glob("*.yaml"))
    assert studies
    assert [(path.stem, match[0]) for path in studies for match in NEVER.finditer(path.read_text())] == []


def test_texts_of_studies() -> None:
    found = []
    for path in sorted((PACKAGE / "decide" / "study" / "gallery").glob("*.yaml")):
        study = yaml.safe_load(path.read_text())
        said = [study[key] for key in ("title", "about", "published", "not_shown")]
        said += [check["name"] for check in study["checks"]]
        found += [(path.stem, match[0]) for text in said for match in NOT_IN_STUDIES.finditer(text)]
    assert found == []
