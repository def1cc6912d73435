"""The layers of the house, as a table and as a test. A room is a folder right under `src/etude`, or a part
of one that joins several (`GROUPS`)."""

import ast
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import pytest

from etude.base.faces import homes
from module_graph import circles, folders, inside, module_graph, module_name, source

SRC = Path(__file__).resolve().parent.parent / "src" / "etude"

GROUPS = {"base", "capture", "make", "run", "world", "tell", "decide", "surface"}
"""Folders whose parts are rooms of their own: `run.simulate` may not import `run.astra`."""
GROUND = {f"base.{n}" for n in ("errors", "faces", "units", "files", "figures", "seals", "quiet", "pages", "rounds")}
GROUND |= {"base.notebook", "base.trust", "base.parameters", "base.grammar"}
GROUND |= {"base.talk", "base.outputs", "base.cluster", "base.excerpts", "base.shapes", "base.results"}
BASE = GROUND | {"kernels", "machine", "model"}
CAPTURE = {"capture.collect", "capture.dry", "capture.link", "capture.ingest"}
MAKE = {"make.generate", "make.synth", "make.transform"}
RUN = {"run.simulate", "run.astra", "run.replay", "run.qualify"}
VERBS = CAPTURE | MAKE | RUN | {"analyse", "tell.view"}
ROOMS_OF_WORLD = {"world.serve", "world.fleet"}
WORLD = ROOMS_OF_WORLD | {"world.asked", "world.folder", "world.headlines"}

MAY_IMPORT: dict[str, set[str]] = {
    "base.errors": set(),
    "base.faces": set(),
    "base.units": {"base.errors"},
    "base.trust": {"base.errors"},
    "base.files": {"base.errors", "base.trust"},
    "base.remote": {"base.errors"},
    "base.figures": {"base.errors", "base.units"},
    "base.parameters": {"base.errors", "base.figures"},
    "base.grammar": {"base.errors", "base.figures"},
    "base.talk": set(),
    "base.outputs": {"base.errors", "base.figures"},
    "base.cluster": {"base.errors", "base.files"},
    "base.excerpts": set(),
    "base.shapes": {"base.errors"},
    "base.results": {"base.errors", "base.files", "base.shapes"},
    "base.seals": set(),
    "base.quiet": set(),
    "base.pages": set(),
    "base.rounds": set(),
    "base.notebook": {"base.units"},
    "kernels": {"base.errors", "base.faces", "base.seals"},
    "machine": GROUND | {"kernels"},
    "model": GROUND | {"kernels", "machine"},
    "store": BASE,
    "cost": BASE,
    # verbs: never one another, except that ingest uses link
    "capture.collect": BASE | {"store", "__init__"},
    "capture.dry": BASE | {"cost", "capture.collect"},
    "capture.link": BASE,
    "capture.ingest": BASE | {"store", "cost", "capture.link"},
    "capture.opening": BASE | {"store", "cost", "capture.link", "capture.ingest", "base.remote"},
    "make.generate": BASE | {"cost"},
    "make.synth": BASE,
    "make.transform": BASE | {"cost"},
    "run.simulate": BASE | {"cost"},
    "run.astra": BASE,
    "run.replay": BASE | {"cost", "__init__"},
    "run.qualify": GROUND,
    "analyse": BASE | {"cost"},
    # composers
    "steps": BASE | VERBS | {"store", "cost", "capture.opening", "__init__"},
    "world.clock": set(),
    "world.policies": GROUND | {"world.serve"},
    "world.devices": BASE | {"world.policies"},
    "world.serve": BASE
    | {"cost", "make.generate", "run.simulate", "capture.dry", "capture.ingest", "steps"}
    | {"world.clock", "world.scenario"},
    "world.fleet": BASE
    | {"cost", "make.generate", "run.simulate", "run.qualify", "analyse", "steps", "world.serve"}
    | {"world.clock", "world.scenario"},
    "world.entities": BASE | ROOMS_OF_WORLD | {"world.clock", "world.devices", "world.policies"},
    "world.scenario": GROUND,
    "world.makers": BASE
    | ROOMS_OF_WORLD
    | {"make.generate", "world.clock", "world.devices", "world.entities", "world.scenario"},
    "world.build": BASE
    | ROOMS_OF_WORLD
    | {
        "world.clock",
        "world.devices",
        "world.policies",
        "world.entities",
        "world.makers",
        "world.prices",
        "world.scenario",
    },
    "world.prices": {"base.files", "world.fleet", "world.devices"},
    "world.folder": GROUND,
    "world.headlines": set(),
    "world.outcome": BASE
    | ROOMS_OF_WORLD
    | {"cost", "world.build", "world.devices", "world.entities", "world.folder", "world.prices", "world.scenario"},
    "world.windows": BASE
    | ROOMS_OF_WORLD
    | {"cost", "make.generate", "make.transform", "run.simulate", "steps"}
    | {"world.build", "world.entities", "world.scenario"},
    "world.asked": GROUND
    | {"cost", "steps", "world.scenario", "world.build", "world.makers", "world.outcome"}
    | {"world.headlines", "world.windows"},
    "tell.view": BASE,
    "tell.demo": BASE | {"store"},  # its steps are commands, which the command line runs for it
    "tell.report": BASE
    | WORLD
    | {"cost", "capture.opening", "make.transform", "analyse", "steps", "tell.view", "__init__"},
    "tell.studio": BASE
    | {"store", "cost", "capture.opening", "make.generate", "make.transform", "run.simulate", "analyse", "steps"}
    | {"tell.view", "tell.report", "tell.archive", "__init__"},
    "tell.archive": BASE | WORLD | {"store", "capture.opening", "analyse", "steps", "tell.report", "__init__"},
    "decide.study": BASE | {"tell.view", "__init__"},  # its points are commands, which the command line runs for it
    "decide.search": BASE
    | WORLD
    | {"cost", "make.generate", "run.simulate", "analyse", "tell.view", "steps", "decide.study", "capture.opening"},
    "decide.score": BASE | CAPTURE | MAKE | RUN | WORLD | {"store", "cost", "capture.opening", "analyse", "steps"},
    "decide.validate": BASE | {"capture.collect", "capture.opening", "run.simulate"},
    "surface.verb": GROUND | {"cost"},  # words
    "surface.mcp": BASE
    | {"store", "cost", "capture.opening", "make.generate", "make.transform", "run.simulate", "analyse", "steps"}
    | {"surface.verb", "__init__"},
    "surface.cli": BASE
    | VERBS
    | WORLD
    | {"store", "cost", "capture.opening", "base.remote", "steps", "tell.report", "tell.archive", "tell.demo"}
    | {"tell.studio", "decide.study", "decide.search", "decide.score", "decide.validate"}
    | {"world.scenario"}  # what verbs print of themselves
    | {"surface.verb", "surface.mcp", "surface.api", "__init__"},
    # what `etude.NAME` calls where several rooms are put together
    "surface.api": BASE
    | VERBS
    | WORLD
    | {"store", "cost", "capture.opening", "steps", "tell.report", "decide.search", "__init__"},
    # the doors; __init__ also gives the version to whoever asks, extend what programs of one's own take
    "__init__": BASE
    | VERBS
    | {"store", "cost", "capture.opening", "steps", "tell.report", "decide.study", "decide.search"}
    | {"surface.api", "extend"},
    "extend": BASE
    | VERBS
    | WORLD
    | {"store", "cost", "capture.opening", "steps", "tell.archive", "decide.study", "decide.search", "surface.api"},
    # public paths beside the folders
    "replay": {"base.faces", "run.replay"},
    "notebook": {"base.notebook"},
    "__main__": {"surface.cli"},
}


LOUD = {"print", "exit", "quit", "sys.exit", "os._exit", "sys.stdout.write", "sys.stderr.write"}


def room_of(path: Path, src: Path) -> str:
    return room_named(path.relative_to(src).with_suffix("").parts)


def room_named(parts: Sequence[str]) -> str:
    """`run.simulate` of `run/simulate/engine.py`; a group's own `__init__` counts as the group."""
    known = parts[0] in GROUPS and len(parts) > 1 and parts[1] != "__init__"
    return ".".join(parts[:2]) if known else parts[0]


def rooms_imported(path: Path, module: list[str]) -> Iterator[tuple[int, str]]:
    """Line and room of each import of Etude in a module; `module` is its dotted name, the package's for a package."""
    for node in source(path).imports:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            stem = module[: len(module) - node.level] if node.level else []
            base = ".".join([*stem, *([node.module] if node.module else [])])
            # `from etude import x` may import the room x or a public name
            whole = base == "etude" or base.removeprefix("etude.") in GROUPS
            names = [f"{base}.{alias.name}" for alias in node.names] if whole else [base]
        for name in names:
            parts = name.split(".")
            if parts[0] == "etude":
                room = room_named(parts[1:]) if len(parts) > 1 else "__init__"
                yield node.lineno, room if room in MAY_IMPORT else "__init__"


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
        if room_of(path, src) in ("surface.cli", "__main__") or path.name == "__main__.py":
            continue
        for line, named in source(path).calls:
            if named in LOUD:
                yield f"{path.relative_to(src)}:{line}: {named}"


def test_layers():
    assert list(crossings(SRC)) == []


def test_every_room_is_in_the_table():
    rooms = {room_of(path, SRC) for path in SRC.rglob("*.py")}
    assert rooms - set(MAY_IMPORT) - GROUPS == set()


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


COMPOSERS = (
    "surface.api", "steps", "world.serve", "world.fleet", "tell.report", "tell.archive", "tell.studio", "decide.study",
    "capture.opening", "surface.mcp", "surface.cli", "__init__",
)  # fmt: skip
SHELVES = ("analyse", "tell.view")
"""Rooms whose files are their faces, each with an `__all__`. What a room's verbs ask for is in its files `asked`, whose
names are all shown."""


def inside_of_rooms(src: Path) -> Iterator[str]:
    """What composers take of a verb, or of one another, beside what these show."""
    shown_rooms = {*VERBS, *ROOMS_OF_WORLD, "steps", "tell.report", "tell.archive", "decide.study"}
    for path in sorted(src.rglob("*.py")):
        room = room_of(path, src)
        for node in source(path).imports if room in COMPOSERS else ():
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("etude."):
                continue
            parts = (node.module or "").split(".")[1:]
            other = room_named(parts)
            if other == room or other not in shown_rooms:
                continue
            file = src.joinpath(*parts).with_suffix(".py")
            if not file.is_file():
                continue
            shown = source(file).shown if other in SHELVES else frozenset()
            for alias in node.names:
                if alias.name not in shown and (alias.name.startswith("_") or "asked" not in parts):
                    yield f"{path.relative_to(src)}:{node.lineno}: {node.module}.{alias.name}"


def test_composers_use_faces_only():
    assert list(inside_of_rooms(SRC)) == []


@pytest.mark.parametrize(
    "file", [f for shelf in SHELVES for f in sorted((SRC / shelf.replace(".", "/")).glob("*.py"))], ids=lambda f: f.stem
)
def test_a_file_on_a_shelf_shows_few_names(file: Path):
    assert len(source(file).shown) <= 8


def test_the_inside_of_a_room_is_seen(tmp_path: Path):
    src = house(
        tmp_path, steps__in__step="from etude.make.generate.plan import Plan\nfrom etude.analyse.idle import idle, _x"
    )
    house(tmp_path, make__in__generate__in__plan="", analyse__in__idle="__all__ = ['idle']")
    assert [c.rpartition(": ")[2] for c in inside_of_rooms(src)] == [
        "etude.make.generate.plan.Plan",
        "etude.analyse.idle._x",
    ]


def test_only_the_command_line_prints_and_exits():
    assert list(loud(SRC)) == []


def house(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / (name.replace("__in__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    "text",
    [
        "import etude.run.simulate",
        "from etude.run import simulate",
        "from etude.run.simulate.engine import run",
        "from ..run.simulate import engine",
        "def late():\n    import etude.run.simulate.engine",
    ],
)
def test_a_crossing_is_seen(tmp_path: Path, text: str):
    src = house(tmp_path, model__in__trace=text)
    assert [c.rpartition(": ")[2] for c in crossings(src)] == ["model imports run.simulate"]


def test_what_is_allowed_or_foreign_is_no_crossing(tmp_path: Path):
    src = house(tmp_path, model__in__trace="import numpy\nfrom etude.base.errors import E\nfrom . import build")
    assert list(crossings(src)) == []


def test_a_print_is_heard_outside_the_command_line_only(tmp_path: Path):
    src = house(tmp_path, base__in__units="print(1)", surface__in__cli__in__info="print(1)")
    assert list(loud(src)) == ["base/units.py:1: print"]
