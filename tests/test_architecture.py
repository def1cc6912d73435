"""The layers of the house, as a table and as a test. A room is a module or a folder right under `src/etude`."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from etude.faces import homes
from module_graph import circles, folders, inside, module_graph, module_name, source

SRC = Path(__file__).resolve().parent.parent / "src" / "etude"

GROUND = {"errors", "faces", "units", "files", "config", "seals", "quiet", "pages", "rounds", "notebook", "trust"}
BASE = GROUND | {"kernels", "machine", "model"}
VERBS = {
    "collect", "link", "ingest", "generate", "synth", "transform", "simulate", "astra", "replay", "qualify", "analyse",
    "view",
}  # fmt: skip

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "faces": set(),
    "units": {"errors"},
    "trust": {"errors"},
    "files": {"errors", "trust"},
    "remote": {"errors"},
    "config": {"errors", "units"},
    "seals": set(),
    "quiet": set(),
    "pages": set(),
    "rounds": set(),
    "notebook": {"units"},
    "kernels": {"errors", "faces"},
    "machine": GROUND | {"kernels"},
    "model": GROUND | {"kernels", "machine"},
    "store": BASE,
    "cost": BASE,
    # verbs: never one another, except that ingest uses link
    "collect": BASE | {"store", "__init__"},
    "link": BASE,
    "ingest": BASE | {"store", "cost", "link"},
    "generate": BASE | {"cost"},
    "synth": BASE,
    "transform": BASE | {"cost"},
    "simulate": BASE | {"cost"},
    "astra": BASE,
    "replay": BASE | {"cost", "__init__"},
    "qualify": GROUND,
    "analyse": BASE | {"cost"},
    "view": BASE,
    # composers
    "opening": BASE | {"store", "cost", "link", "ingest", "remote"},
    "predict": BASE | VERBS | {"store", "cost", "opening"},
    "serve": BASE | {"cost", "generate", "simulate", "ingest", "predict"},
    "fleet": BASE | {"cost", "generate", "simulate", "analyse", "predict", "serve"},
    "report": BASE | {"cost", "analyse", "view"},
    "archive": BASE | {"store", "analyse", "report"},
    "study": BASE | {"view", "__init__"},  # its points are commands, which the command line runs for it
    "search": BASE
    | {"cost", "generate", "simulate", "analyse", "view", "predict", "serve", "fleet", "study", "opening"},
    "mcp": BASE | {"store", "cost", "opening", "generate", "transform", "simulate", "analyse", "predict", "__init__"},
    "cli": BASE
    | VERBS
    | {"store", "cost", "opening", "remote", "predict", "serve", "fleet", "report", "archive", "study", "search"}
    | {"mcp", "api", "__init__"},
    # what `etude.NAME` calls where several rooms are put together
    "api": BASE | VERBS | {"store", "cost", "opening", "predict", "serve", "fleet", "report", "search", "__init__"},
    # the doors; __init__ also gives the version to whoever asks, extend what programs of one's own take
    "__init__": BASE | VERBS | {"store", "cost", "opening", "study", "search", "api", "extend"},
    "extend": BASE
    | VERBS
    | {"store", "cost", "opening", "predict", "serve", "fleet", "archive", "study", "search", "api"},
    "__main__": {"cli"},
}


LOUD = {"print", "exit", "quit", "sys.exit", "os._exit", "sys.stdout.write", "sys.stderr.write"}


def room_of(path: Path, src: Path) -> str:
    return path.relative_to(src).parts[0].removesuffix(".py")


def rooms_imported(path: Path, module: list[str]) -> Iterator[tuple[int, str]]:
    """Line and room of each import of Etude in a module; `module` is its dotted name, the package's for a package."""
    for node in source(path).imports:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            stem = module[: len(module) - node.level] if node.level else []
            base = ".".join([*stem, *([node.module] if node.module else [])])
            # `from etude import x` may import the room x or a public name
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "etude" else [base]
        for name in names:
            parts = name.split(".")
            if parts[0] == "etude":
                room = parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "__init__"
                yield node.lineno, room


def crossings(src: Path) -> Iterator[str]:
    for path in sorted(src.rglob("*.py")):
        module = ["etude", *path.relative_to(src).with_suffix("").parts]
        room = room_of(path, src)
        for line, other in rooms_imported(path, module):
            if other != room and other not in MAY_IMPORT.get(room, set()):
                yield f"{path.relative_to(src)}:{line}: {room} imports {other}"


def loud(src: Path) -> Iterator[str]:
    """What prints, or ends the process, without being the command line."""
    for path in sorted(src.rglob("*.py")):
        if room_of(path, src) in ("cli", "__main__") or path.name == "__main__.py":
            continue
        for line, named in source(path).calls:
            if named in LOUD:
                yield f"{path.relative_to(src)}:{line}: {named}"


def test_layers():
    assert list(crossings(SRC)) == []


def test_every_room_is_in_the_table():
    rooms = {room_of(path, SRC) for path in SRC.rglob("*.py")}
    assert rooms - set(MAY_IMPORT) == set()


def test_no_circle_inside_a_room():
    graph = module_graph(SRC)
    assert [found for part in inside(graph) for found in circles(part)] == []


def test_a_circle_is_seen():
    graph = {
        "etude.a.x": {"etude.a.y"},
        "etude.a.y": {"etude.a.z"},
        "etude.a.z": {"etude.a.x"},
        "etude.b.x": {"etude.a.x"},
    }
    assert circles(graph) == [["etude.a.x", "etude.a.y", "etude.a.z"]]


def test_no_circle_among_sub_rooms():
    packages = {module_name(path, SRC) for path in SRC.rglob("__init__.py")}
    assert circles(folders(module_graph(SRC), packages)) == []


ROOMS = [module_name(path, SRC) for path in sorted(SRC.rglob("__init__.py")) if path.parent != SRC]


@pytest.mark.parametrize("room", ROOMS)
def test_a_face_has_few_names_and_each_is_there(room: str):
    module = import_module(room)
    names = homes(room)
    assert len(names) <= 8
    files = {path.stem for path in Path(str(module.__file__)).parent.iterdir()}
    for name, (home, there) in names.items():
        assert home == room or name not in files, f"`{name}` is a file of {room} too"
        assert there == name and getattr(module, name) is not None


COMPOSERS = ("api", "predict", "serve", "fleet", "report", "archive", "study", "opening", "mcp", "cli", "__init__")
SHELVES = ("analyse", "view")
"""Rooms whose files are their faces, each with an `__all__`."""


def inside_of_rooms(src: Path) -> Iterator[str]:
    """What composers take of a verb, or of one another, beside what these show."""
    shown_rooms = {*VERBS, "predict", "serve", "fleet", "report", "archive", "study"}
    for path in sorted(src.rglob("*.py")):
        room = room_of(path, src)
        for node in source(path).imports if room in COMPOSERS else ():
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("etude."):
                continue
            parts = (node.module or "").split(".")[1:]
            if parts[0] == room or parts[0] not in shown_rooms:
                continue
            file = src.joinpath(*parts).with_suffix(".py")
            if not file.is_file():
                continue
            shown = source(file).shown if parts[0] in SHELVES else frozenset()
            for alias in node.names:
                if alias.name not in shown:
                    yield f"{path.relative_to(src)}:{node.lineno}: {node.module}.{alias.name}"


def test_composers_use_faces_only():
    assert list(inside_of_rooms(SRC)) == []


@pytest.mark.parametrize(
    "file", [f for shelf in SHELVES for f in sorted((SRC / shelf).glob("*.py"))], ids=lambda f: f.stem
)
def test_a_file_on_a_shelf_shows_few_names(file: Path):
    assert len(source(file).shown) <= 8


def test_the_inside_of_a_room_is_seen(tmp_path: Path):
    src = house(
        tmp_path, predict__in__step="from etude.generate.plan import Plan\nfrom etude.analyse.idle import idle, _x"
    )
    house(tmp_path, generate__in__plan="", analyse__in__idle="__all__ = ['idle']")
    assert [c.rpartition(": ")[2] for c in inside_of_rooms(src)] == [
        "etude.generate.plan.Plan",
        "etude.analyse.idle._x",
    ]


def test_only_the_command_line_prints_and_exits():
    assert list(loud(SRC)) == []


def house(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "text",
    [
        "import etude.simulate",
        "from etude import simulate",
        "from etude.simulate.engine import run",
        "from ..simulate import engine",
        "def late():\n    import etude.simulate.engine",
    ],
)
def test_a_crossing_is_seen(tmp_path: Path, text: str):
    src = house(tmp_path, model__in__trace=text)
    assert [c.rpartition(": ")[2] for c in crossings(src)] == ["model imports simulate"]


def test_what_is_allowed_or_foreign_is_no_crossing(tmp_path: Path):
    src = house(tmp_path, model__in__trace="import numpy\nfrom etude.errors import TraceError\nfrom . import build")
    assert list(crossings(src)) == []


def test_a_print_is_heard_outside_the_command_line_only(tmp_path: Path):
    src = house(tmp_path, units="print(1)", cli__in__info="print(1)")
    assert list(loud(src)) == ["units.py:1: print"]
