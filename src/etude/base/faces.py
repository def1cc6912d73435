"""Faces: the few names that a room shows to others, each loaded from its file when it is first asked for.

    # etude/simulate/__init__.py
    if TYPE_CHECKING:
        from etude.run.simulate.run import simulate as simulate
    __getattr__ = face(__name__)

The imports that a type checker sees are the list, a file of the room among them if it is to be taken whole; nothing is
written twice. `import etude.run.simulate` loads nothing, and
`etude.run.simulate.simulate` loads its file. Composers and the command line take these names and no others of a room.

Some rooms have the name of a public verb. Once anything of such a room is imported, `etude.simulate` is the room and no
longer the function, so the room can be called as well: `verb(__name__)` at the end of its `__init__`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any


@cache
def homes(room: str) -> dict[str, tuple[str, str]]:
    """Name -> (module, name there), from the imports of the room's `__init__` that only a type checker sees."""
    import ast  # here, since most uses of a room ask for no face

    module = sys.modules[room]
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


_DOORS: dict[str, str] = {}


def face(room: str, door: str = "") -> Callable[[str], object]:
    """The `__getattr__` of a room. A `door` (`module:function`) is what its functions are handed out through."""
    if door:
        _DOORS[room] = door

    def load(name: str) -> object:
        if name.startswith("_") or name not in homes(room):
            raise AttributeError(f"module `{room}` has no attribute `{name}`")
        value = _handed_out(room, name, _loaded(room, *homes(room)[name]))
        setattr(sys.modules[room], name, value)
        return value

    return load


def _loaded(room: str, module: str, there: str) -> object:
    """A name of a module, or a module of a room."""
    if module == room:
        return import_module(f"{room}.{there}")
    home = import_module(module)
    return getattr(home, there) if hasattr(home, there) else import_module(f"{module}.{there}")


def _handed_out(room: str, name: str, value: Any) -> Any:
    """The value, a function through the door of the room. It is found again under the room's name, as pickles do."""
    if room not in _DOORS or not isinstance(value, FunctionType):
        return value
    module, _, there = _DOORS[room].partition(":")
    made = getattr(import_module(module), there)(value)
    if made is not value:
        made.__module__, made.__qualname__ = room, name
    return made


class _Verb(ModuleType):
    """A room that is called like the public function of its name."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return _public(self.__name__)(*args, **options)

    @property
    def __signature__(self) -> Any:
        import inspect

        return inspect.signature(_public(self.__name__))


@cache
def _public(room: str) -> Any:
    package, _, name = room.rpartition(".")
    module, there = homes(package)[name]
    return _handed_out(package, name, getattr(import_module(module), there))


def verb(room: str) -> None:
    """Makes a room callable, as the public function that has its name."""
    sys.modules[room].__class__ = _Verb
