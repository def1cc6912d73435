import dataclasses
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
    "Trace",
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
    "extend",
    "fleet",
    "generate",
    "idle",
    "kernels",
    "link",
    "memory",
    "metrics",
    "open",
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
    "timeline",
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
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.py")),
        *sorted((ROOT / "examples").rglob("*.ipynb")),
    )
    if "decisions" not in path.parts
]
IMPORTED = re.compile(r"^ *(?:from (etude[a-z_.]*) import ([\w, ]+)|import (etude[a-z_.]+))", re.MULTILINE)
NAMED = re.compile(r"(?<![\w/.\-])(etude\.[a-z_]+(?:\.[A-Za-z_]+)+)")
LOADED = {"etude.notebook"}
"""What is no name to import: `%load_ext etude.notebook`."""
ANNOTATED = ("etude.flops.",)
"""Names of annotations in an InfraGraph, which look like paths."""
OWN_FILE = re.compile(r"```python\n# src/etude/.*?```|```diff\n.*?```", re.DOTALL)
"""In CONTRIBUTING: files of the package itself, which take from its rooms what the test of the architecture allows."""


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


def is_public(path: str) -> bool:
    """`etude.NAME`, `etude.extend.NAME`, and what hangs on them."""
    _, first, *rest = path.split(".")
    if first == "extend":
        return not rest or rest[0] in etude.extend.__all__
    module = ROOT / "src" / "etude" / first
    below = rest and (module / f"{rest[0]}.py").is_file()  # `etude.steps.step`: a file, not what the verb returns
    return path in LOADED or path.startswith(ANNOTATED) or (first in PUBLIC and not below and not rest[1:])


def private_paths(page: Path) -> list[str]:
    text = page.read_text("utf-8")
    if page.name == "CONTRIBUTING.md":
        text = OWN_FILE.sub("", text)
    return [path for path in paths_named(text) if not is_public(path)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_pages_and_examples_name_public_paths_alone(page: Path):
    assert private_paths(page) == []


def test_a_private_path_is_seen():
    text = (
        "from etude.run.simulate.engine import run\nimport etude\n`etude.model.fold.fold`\n"
        "from etude.machine import Device\n"
        "from etude.extend import Kind, engine\n"
        "see etude.cost.ops and /usr/etude.a.b; etude.open.close, etude.steps.step"
    )
    assert [path for path in paths_named(text) if not is_public(path)] == [
        "etude.run.simulate.engine.run",
        "etude.machine.Device",
        "etude.extend.engine",
        "etude.run.simulate.engine",
        "etude.model.fold.fold",
        "etude.cost.ops",
        "etude.steps.step",
    ]


def test_extend_is_short_and_each_name_is_there():
    assert sorted(etude.extend.__all__) == dir(etude.extend)
    assert len(dir(etude.extend)) <= 75
    assert set(dir(etude.extend)) & set(PUBLIC) == set()
    for name in dir(etude.extend):
        thing = getattr(etude.extend, name)
        assert inspect.getdoc(thing), name
        assert not inspect.getdoc(thing).startswith(f"{name}("), f"{name} has no docstring of its own"


def test_what_verbs_return_shows_itself():
    made = etude.generate("gpt2", gpus=2)
    run = etude.simulate(made.job, etude.open_system("dgx-h100"))
    served = etude.serve("gpt2", "dgx-h100", rate_per_s=4, count=5, prompt=64, output=8)
    shown = [made, run, run.timing, etude.predict("gpt2", "dgx-h100", gpus=2), served, etude.energy(run)]
    shown += [etude.study(str(ROOT / "examples" / "study.yaml")), etude.fleet("gpt2", "dgx-h100", gpus=8, days=1)]
    shown += [etude.extend.federate("gpt2", ROOT / "examples" / "clients.csv", rounds=2)]
    for value in shown:
        assert repr(value).startswith(f"{type(value).__name__}(")
        assert len(repr(value)) < 200, repr(value)
        home = etude if type(value).__name__ in PUBLIC else etude.extend
        assert getattr(home, type(value).__name__) is type(value)


def test_systems_models_and_plans_are_one_line_that_tells_them_apart():
    system, model = etude.open_system("dgx-h100"), etude.extend.open_model("llama3-8b")
    plan = etude.Plan(gpus=16, tp=2, zero=1)
    assert repr(plan) == "Plan(gpus=16, tp=2, zero=1)"
    assert repr(etude.Plan()) == "Plan(gpus=1)"
    assert repr(system).startswith("System(`dgx-h100`: ")
    assert repr(model).startswith("Model(`llama3-8b`: decoder, 32 layers, hidden 4096, #")
    # caches take them as keys: what is not shown must still tell them apart
    changed = [
        (system, system.replace(doc="other")),
        (system, system.with_devices(lambda device: dataclasses.replace(device, memory_bytes=1))),
        (model, model.replace(tied=True)),
        (plan, etude.Plan(gpus=16, tp=2, zero=1, sp=True)),
    ]
    for before, after in changed:
        assert before != after
        assert repr(before) != repr(after)
    for value in (system, model, plan):
        assert len(repr(value)) < 160
        assert "\n" not in repr(value)
    assert repr(system) == repr(etude.open_system("dgx-h100").replace())
    assert "<table" in system._repr_html_()


def test_the_page_of_the_api_is_what_the_code_says():
    module = api_generator()
    assert (ROOT / "docs" / "api.md").read_text("utf-8") == module.api_page(), "run `make docs`"


NEEDS = {
    "collect": "PyTorch", "replay": "PyTorch", "link": "a recorded run", "federate": "a file",
    "place_workflows": "a file", "study": "a file", "Study": "a file",
    "search": "a file", "fleet": "seconds", "plan": "seconds", "serve": "seconds",
}  # fmt: skip


def test_the_examples_of_the_api_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = api_generator()
    monkeypatch.chdir(tmp_path)
    job = etude.generate("llama3-8b", gpus=4, tp=2, seq=128).job
    for name in ("job", "other"):
        etude.convert(job, name)
    run = etude.simulate(job, etude.open_system("dgx-h100"))
    sample = ROOT / "src" / "etude" / "capture" / "sample" / "gpt.rank0.kineto.json.gz"
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
    etude.convert(job, "et", to="et", name="w")
    for name in sorted(set(etude.extend.__all__) - set(NEEDS)):
        exec(compile(module.example_of(name), name, "exec"), dict(known))


def test_a_room_with_the_name_of_a_verb_can_be_called():
    from etude.base.faces import homes

    rooms = {path.parent.name for path in (ROOT / "src" / "etude").glob("*/__init__.py")}
    for name in sorted(rooms & set(PUBLIC)):
        room = import_module(f"etude.{name}")
        there = homes("etude")[name]
        assert callable(room), f"verb(__name__) at the end of etude/{name}/__init__.py"
        assert inspect.signature(room) == inspect.signature(getattr(import_module(there[0]), there[1]))
