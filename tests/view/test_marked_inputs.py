"""A marked text in every field of every kind of file that can have it: in no page does it become markup."""

import copy
import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import etude
from etude.surface.cli import main
from fuzz_readers import Reader, readers
from view.test_markup import policed

MARK = "<script>document.title='PWNED'</script>\"'><img src=x onerror=\"document.title='PWNED'\">"
KINDS = ("kineto", "host alone", "engine", "xla json", "rocprofv3", "rocprof", "dump", "dump.json")
UNTIMED = ("host alone",)
EACH = 2
"""Of a field that many entries of a list have, this many are marked."""


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    return {one.name: one for one in readers(tmp_path_factory.mktemp("examples"))}


def texts_in(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the texts are."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inner, str):
            yield (*before, key)
        elif isinstance(inner, dict | list | tuple):
            yield from texts_in(inner, (*before, key))


def marked(whole: Any, can_be_read: Callable[[Any], bool]) -> tuple[Any, list[tuple[Any, ...]]]:
    """The document with the mark behind each text where it can still be read, and their places."""
    seen: dict[str, int] = {}
    done = []
    for at in list(texts_in(whole)):
        pattern = "/".join("*" if isinstance(key, int) else key for key in at)
        seen[pattern] = seen.get(pattern, 0) + 1
        if seen[pattern] > EACH:
            continue
        tried = copy.deepcopy(whole)
        inner = tried
        for key in at[:-1]:
            if isinstance(inner[key], tuple):
                inner[key] = list(inner[key])
            inner = inner[key]
        inner[at[-1]] += MARK
        if can_be_read(tried):
            whole = tried
            done.append(at)
    return whole, done


@pytest.mark.parametrize("kind", KINDS)
def test_a_recording(kind: str, known: dict[str, Reader], tmp_path: Path) -> None:
    reader, path, page = known[kind], tmp_path / known[kind].file, tmp_path / "r.html"
    is_pickle = reader.example[:2] == b"\x80\x04"
    whole = pickle.loads(reader.example) if is_pickle else json.loads(reader.example)

    def can_be_read(value: Any) -> bool:
        path.write_bytes(pickle.dumps(value) if is_pickle else json.dumps(value).encode())
        try:
            reader.read(path)
        except etude.EtudeError:
            return False
        return True

    value, places = marked(whole, can_be_read)
    assert places, "no field takes a text"
    assert can_be_read(value)
    words = ["--system", "dgx-h100"] if kind in UNTIMED else []
    assert main(["report", str(path), *words, "-o", str(page)]) == 0
    policed(page.read_text("utf-8"))


@pytest.mark.parametrize("kind", ["system", "model"])
def test_a_description(kind: str, known: dict[str, Reader], tmp_path: Path) -> None:
    reader, path, page = known[kind], tmp_path / known[kind].file, tmp_path / "r.html"

    def can_be_read(value: Any) -> bool:
        path.write_text(yaml.safe_dump(value))
        try:
            reader.read(path)
        except etude.EtudeError:
            return False
        return True

    value, places = marked(yaml.safe_load(reader.example), can_be_read)
    assert places
    assert can_be_read(value)
    model, system = (path, "dgx-h100") if kind == "model" else ("gpt2", path)
    out = tmp_path / "served"
    words = ["--rate", "4", "--count", "3", "--prompt", "8", "--output", "2", "-o", str(out)]
    if kind == "model":
        assert main(["generate", str(model), "--gpus", "1", "--seq", "32", "-o", str(tmp_path / "job")]) == 0
        assert main(["report", str(tmp_path / "job"), "--system", str(system), "-o", str(page)]) == 0
    else:
        assert main(["serve", str(model), "--system", str(system), *words]) == 0
        assert main(["report", str(out), "-o", str(page)]) == 0
    policed(page.read_text("utf-8"))


def test_requests_and_their_names(tmp_path: Path) -> None:
    file, out, page = tmp_path / "r.jsonl", tmp_path / f"served {re.sub('/', '|', MARK)[:60]}", tmp_path / "r.html"
    rows = [{"arrival": k / 10, "prompt": 8, "output": 2, "session": f"{k}{MARK}"} for k in range(3)]
    file.write_text("\n".join(map(json.dumps, rows)))
    assert main(["serve", "gpt2", "--system", "dgx-h100", "--requests", str(file), "-o", str(out)]) == 0
    assert main(["report", str(out), "-o", str(page)]) == 0
    policed(page.read_text("utf-8"))


def test_studies_and_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(yaml.safe_dump({
        "title": f"a{MARK}", "paper": f"b{MARK}", "about": f"c{MARK}",
        "run": ["etude predict gpt2 --system dgx-h100 --gpus {gpus} --json"],
        "baseline": {"gpus": 1}, "variants": {f"two{MARK}": {"gpus": 2}},
        "metrics": {"step": "step_time_ns"},
    }))  # fmt: skip
    Path("world.yaml").write_text(yaml.safe_dump({
        "machine": {"system": "dgx-h100", "nodes": 1},
        "workloads": {f"chat{MARK}": {"serve": "gpt2", "rate": 4, "count": 3, "nodes": 1}},
    }))  # fmt: skip
    assert main(["world", "run", "world.yaml"]) == 2  # its names are plain
    assert main(["study", "run", "study.yaml", "-o", "study"]) == 0
    assert main(["search", "gpt2", "--system", "dgx-h100", "--gpus", "2", "-o", f"found{MARK[:7]}"]) == 0
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) >= 2
    for page in pages:
        policed(page.read_text("utf-8"))
