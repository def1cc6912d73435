"""Reads InfraGraph files, YAML or JSON. Annotations are a second file, or a second document of the same YAML stream."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import yaml

from etude.base.errors import FormatError
from etude.base.figures import safe_loader
from etude.machine.infragraph.annotations import AnnotatedTopology, cluster_of
from etude.machine.infragraph.graph import InfraGraph, expand

# An edge as the infragraph package writes it. Fabrics list tens of thousands of them, on which a YAML parser spends
# minutes; any other form goes to the parser.
_EDGE = re.compile(
    r"- ep1:\n    component: ([\w.\[\]:-]+)\n    instance: ([\w.\[\]:-]+)\n"
    r"  ep2:\n    component: ([\w.\[\]:-]+)\n    instance: ([\w.\[\]:-]+)\n"
    r"  link: ([\w.-]+)\n(?:  scheme: (\w+)\n)?"
)
_PLAIN = re.compile(r"(?![-+.]?[0-9])[A-Za-z_]")


def read_cluster(path: str | PathLike[str], annotations: str | PathLike[str] | None = None) -> AnnotatedTopology:
    """The topology that a file describes, with the figures that its annotations give."""
    document, notes = read_documents(path)
    if annotations is not None:
        [notes, *_] = _documents(Path(annotations))
    return cluster_of(expand(document), notes)


def read_infragraph(path: str | PathLike[str]) -> InfraGraph:
    """The expanded graph, whether or not its links are complete."""
    return expand(read_documents(path)[0])


def read_documents(path: str | PathLike[str]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(Infrastructure, Annotation or None) as plain mappings."""
    documents = _documents(Path(path))
    if len(documents) > 2:
        raise FormatError(f"has {len(documents)} documents", path=path, hint="infrastructure, then annotations")
    return documents[0], documents[1] if len(documents) == 2 else None


def _documents(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise FormatError(f"cannot be read: {problem}", path=path) from None
    try:
        found = [msgspec.json.decode(text)] if text.lstrip()[:1] == "{" else _yaml(text)
    except msgspec.DecodeError as problem:
        raise FormatError(f"is not JSON: {problem}", path=path) from None
    except (yaml.YAMLError, RecursionError) as problem:
        raise FormatError(f"is not YAML: {problem}", path=path) from None
    if not found or not all(isinstance(d, dict) for d in found):
        raise FormatError("is not an InfraGraph: a mapping was expected", path=path)
    return found


def _yaml(text: str) -> list[Any]:
    edges: list[dict[str, Any]] | None = None
    begin = text.find("\nedges:\n")
    if begin >= 0:
        first = begin + len("\nedges:\n")
        edges, end = _plain_edges(text, first)
        if edges:
            text = text[: first - 1] + " []\n" + text[end:]
    loader = safe_loader()
    documents = [d for d in yaml.load_all(text, loader) if d is not None]
    if edges and documents and isinstance(documents[0], dict):
        documents[0]["edges"] = edges
    return documents


def _plain_edges(text: str, first: int) -> tuple[list[dict[str, Any]], int]:
    """Edges from `first` on that are written plainly, and where they end; none if the list continues after them."""
    edges: list[dict[str, Any]] = []
    at = first
    for match in _EDGE.finditer(text, first):
        if match.start() != at:
            break
        component1, instance1, component2, instance2, link, scheme = match.groups()
        edges.append(
            {
                "ep1": {"instance": instance1, "component": component1},
                "ep2": {"instance": instance2, "component": component2},
                "link": link,
                "scheme": scheme or "one2one",
            }
        )
        at = match.end()
    goes_on = text[at : at + 1] in ("-", " ")
    # Words that YAML does not read as text (numbers, yes, null) are left to the parser.
    odd = {e["link"] for e in edges if not _is_word(e["link"])}
    return ([], first) if goes_on or odd else (edges, at)


def _is_word(text: str) -> bool:
    return bool(_PLAIN.match(text)) and text.lower() not in (
        "yes",
        "no",
        "on",
        "off",
        "true",
        "false",
        "null",
        "y",
        "n",
    )
