import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import etude

# The public surface. Adding a name here is a promise to keep it.
PUBLIC = [
    "EtudeError",
    "Job",
    "Plan",
    "Run",
    "System",
    "Timing",
    "Trace",
    "TraceError",
    "__version__",
    "anonymise",
    "breakdown",
    "check",
    "collect",
    "collectives",
    "compare",
    "convert",
    "critical_path",
    "diff",
    "edit",
    "energy",
    "expand",
    "federate",
    "feeder",
    "fleet",
    "fold",
    "generate",
    "idle",
    "kernels",
    "learn",
    "link",
    "memory",
    "metrics",
    "micro",
    "open",
    "open_feeder",
    "open_model",
    "open_run",
    "open_system",
    "operators",
    "plan",
    "predict",
    "query",
    "replay",
    "report",
    "roofline",
    "search",
    "serve",
    "simulate",
    "steps",
    "stragglers",
    "study",
    "summary",
    "synthesise",
    "timeline",
    "what_if",
]

HEAVY = {"numpy", "numba", "pyarrow", "duckdb", "msgspec", "torch", "ray", "typer", "rich"}


def test_the_public_names_are_these():
    assert sorted(etude.__all__) == PUBLIC
    assert dir(etude) == PUBLIC


def test_every_public_name_is_there():
    for name in PUBLIC:
        assert getattr(etude, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(etude, "nothing_of_this_name")


def test_importing_etude_is_light():
    code = "import sys, etude; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "etude" in loaded
    assert HEAVY & {name.partition(".")[0] for name in loaded} == set()


# --- what the docs name

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.py")))
    if "decisions" not in path.parts
]
IMPORTED = re.compile(r"^ *(?:from (etude[a-z_.]*) import ([\w, ]+)|import (etude[a-z_.]+))", re.MULTILINE)
NAMED = re.compile(r"`(etude\.[a-z_]+\.[A-Za-z_.]+)")


def api_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_api", ROOT / "docs" / "generate_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def paths_named(text: str) -> Iterator[str]:
    """Dotted paths below `etude` that a page tells a reader to use."""
    for module, names, alone in IMPORTED.findall(text):
        yield from (f"{module}.{name.split()[0]}" for name in (names or "").split(",")) if names else [alone]
    yield from NAMED.findall(text)


def is_public(path: str, rooms: dict[str, str]) -> bool:
    if path.count(".") == 1 and path.partition(".")[2] in PUBLIC:
        return True
    return any(
        path == room or path.rpartition(".")[0] == room or (room.endswith("*") and path.startswith(room[:-1]))
        for room in rooms
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_pages_and_examples_name_public_paths_alone(page: Path):
    rooms = api_generator().ROOMS
    assert [path for path in paths_named(page.read_text("utf-8")) if not is_public(path, rooms)] == []


def test_a_private_path_is_seen():
    rooms = {"etude.machine": "", "etude.cost.*": ""}
    text = (
        "from etude.simulate.engine import run\nimport etude\n`etude.model.fold.fold`\nfrom etude.machine import Device"
    )
    assert [path for path in paths_named(text) if not is_public(path, rooms)] == [
        "etude.simulate.engine.run",
        "etude.model.fold.fold",
    ]


def test_the_page_of_the_api_is_what_the_code_says():
    module = api_generator()
    assert (ROOT / "docs" / "api.md").read_text("utf-8") == module.api_page(), "run `make docs`"


NEEDS = {
    "collect": "PyTorch", "replay": "PyTorch", "link": "a recorded run", "open_feeder": "a file", "federate": "a file",
    "study": "a file", "search": "a file", "fleet": "seconds", "plan": "seconds", "serve": "seconds",
}  # fmt: skip


def test_the_examples_of_the_api_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = api_generator()
    monkeypatch.chdir(tmp_path)
    job = etude.generate("llama3-8b", gpus=2, tp=2, seq=128).job
    for name in ("job", "other"):
        etude.convert(job, name)
    run = etude.simulate(job, etude.open_system("dgx-h100"))
    sample = ROOT / "src" / "etude" / "sample" / "gpt.rank0.kineto.json.gz"
    for name in ("trace.json.gz", "after.json.gz"):
        shutil.copy(sample, name)
    known = {"etude": etude, "job": etude.open("job"), "run": run}
    job_with_times = etude.open_run("trace.json.gz").job
    for names in module.GROUPS.values():
        for name in names.split():
            signature, line, example = module.parts(name)
            assert signature.startswith(f"etude.{name}")
            assert line and f"etude.{name}" in example
            code = compile(example, name, "exec")
            if name not in NEEDS:
                exec(code, dict(known) | ({"job": job_with_times} if name == "Run" else {}))


def test_a_room_with_the_name_of_a_verb_can_be_called():
    from etude.faces import homes

    rooms = {path.parent.name for path in (ROOT / "src" / "etude").glob("*/__init__.py")}
    for name in sorted(rooms & set(PUBLIC)):
        room = import_module(f"etude.{name}")
        there = homes("etude")[name]
        assert callable(room), f"verb(__name__) at the end of etude/{name}/__init__.py"
        assert inspect.signature(room) == inspect.signature(getattr(import_module(there[0]), there[1]))
