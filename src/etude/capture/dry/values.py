"""The answer to a program that asks for a number that a dry run does not have."""

import linecache
import os
import sys
from collections.abc import Callable
from typing import Any

from etude.capture.dry import searches
from etude.capture.dry.assumptions import state

_HERE = os.sep + os.path.join("etude", "capture") + os.sep


class AskedValueError(Exception):
    """A line of the program needs a number of a tensor, and no answer was stated for it."""

    def __init__(self, where: str, line: str, name: str) -> None:
        self.where, self.line, self.name = where, line, name
        super().__init__(f"{where}: `{line}` needs the value of a tensor, and a dry run has none")


class AskedShapeError(Exception):
    """The shape of a result depends on numbers of a tensor, and no count was stated for it."""

    def __init__(self, where: str, line: str) -> None:
        self.where, self.line = where, line
        super().__init__(f"{where}: `{line}` makes as many rows as the values say, and a dry run has none")


class Unknown(float):
    """A number that is not known: it can be printed, added and passed on, but nothing may be decided by it."""

    def __new__(cls, name: str) -> "Unknown":
        made = super().__new__(cls, float("nan"))
        made.name = name
        return made

    name: str

    def __str__(self) -> str:
        return "unknown"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return "unknown"

    def _made(self, *_: Any) -> "Unknown":
        return Unknown(self.name)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _made
    __pow__ = __rpow__ = __neg__ = __abs__ = __floordiv__ = __mod__ = _made

    def __round__(self, *_: Any) -> "Unknown":  # type: ignore[override]
        return Unknown(self.name)

    def _refuse(self, *_: Any) -> Any:
        where, line, _frame = asking()
        raise AskedValueError(where, line, self.name)

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __bool__ = __int__ = __index__ = _refuse
    __hash__ = float.__hash__


BUILT_IN = {
    "distributed/pipelining/schedules.py": 0,
    "amp/grad_scaler.py": 0,
    "torch/nn/init.py": 0,
    "utils/data/dataloader.py": 0,
    "utils/data/sampler.py": 0,
}
"""Answers to questions of PyTorch itself: stages find out their shapes while they run; no gradient is infinite; numbers
that were drawn are within their bounds; seeds are 0."""
SAMPLERS = ("utils/data/sampler.py", "utils/data/distributed.py")
"""They ask for the order of samples: it is that of the data set."""


class Answers:
    """Numbers that were stated for tensors, by the names that the program has for them."""

    def __init__(self, stated: dict[str, float]) -> None:
        self._stated = stated
        self.used: dict[str, int] = {}
        self.unknown: dict[str, int] = {}
        """Lines that were given an unknown number, and how often."""
        self.read: Callable[[Any], None] = lambda tensor: None
        """Called with each tensor that a number is asked of."""

    def order(self, length: int) -> list[int] | None:
        """The order of samples, if that is what is asked."""
        return list(range(length)) if _asking_file().endswith(SAMPLERS) else None

    def count(self, most: int) -> int:
        """How many of `most` a result has whose shape depends on numbers: stated, as a count or as a share."""
        where, line, _ = asking()
        if where not in self._stated:
            raise AskedShapeError(where, line)
        self.used[where] = self.used.get(where, 0) + 1
        value = self._stated[where]
        return min(most, int(value if value >= 1 else value * most))

    def states(self, tensor: Any) -> bool:
        """Whether an answer was stated for what asks."""
        where, _, frame = asking()
        return where in self._stated or _name_of(tensor, frame) in self._stated

    def of(self, tensor: Any, *, kind: str) -> Any:
        """What `item()`, `float()`, `int()` and `bool()` give."""
        where, line, frame = asking()
        name = _name_of(tensor, frame)
        built_in = _built_in()
        if built_in is not None:
            return bool(built_in) if kind == "bool" else built_in
        search = _asking_search()
        if search is not None and kind != "bool":
            return searches.LOSS if kind == "float" else Unknown(name)
        decided = self._decides(*search) if search is not None else None
        if decided is not None:
            return decided
        for key in (where, name):
            if key in self._stated:
                self.used[key] = self.used.get(key, 0) + 1
                value = self._stated[key]
                return bool(value) if kind == "bool" else value if tensor.dtype.is_floating_point else int(value)
        if kind == "item" and tensor.dtype.is_floating_point:
            self.unknown[where] = self.unknown.get(where, 0) + 1
            return Unknown(name)
        raise AskedValueError(where, line, name)

    def _decides(self, where: str, line: str) -> bool | None:
        """What a line of a search comes to: as stated for it, or so that it goes on; None if the line is not known."""
        if where in self._stated:
            self.used[where] = self.used.get(where, 0) + 1
            return bool(self._stated[where])
        decided = searches.decision_of(line)
        if decided is not None:
            state(searches.ASSUMED)
        return decided


def asking() -> tuple[str, str, Any]:
    """(File and line, its text, the frame) of the program's own code that asks: the innermost that is not PyTorch's,
    Etude's or the library's own."""
    frame: Any = sys._getframe(1)
    while frame is not None and is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "?", "?", None
    file, number = frame.f_code.co_filename, frame.f_lineno
    return f"{file.rsplit('/', 1)[-1]}:{number}", linecache.getline(file, number).strip(), frame


def _asking_search() -> tuple[str, str] | None:
    """(File and line, its text) of a search of PyTorch that asks; None where something else does, such as what the
    search calls."""
    frame: Any = sys._getframe(1)
    while frame is not None and is_foreign(frame.f_code.co_filename):
        file, number = frame.f_code.co_filename, frame.f_lineno
        if file.endswith(searches.FILE):
            return f"{file.rsplit('/', 1)[-1]}:{number}", linecache.getline(file, number).strip()
        frame = frame.f_back
    return None


def _asking_file() -> str:
    """The file that asks, PyTorch's own included."""
    frame: Any = sys._getframe(1)
    while frame is not None and _HERE in frame.f_code.co_filename:
        frame = frame.f_back
    return frame.f_code.co_filename if frame is not None else ""


def _built_in() -> int | None:
    file = _asking_file()
    return next((value for ending, value in BUILT_IN.items() if file.endswith(ending)), None)


def is_foreign(file: str) -> bool:
    torch = sys.modules.get("torch")
    inside = torch is not None and file.startswith(os.path.dirname(torch.__file__ or "?") + os.sep)
    return inside or _HERE in file or file.startswith("<")


def _name_of(tensor: Any, frame: Any) -> str:
    if frame is None:
        return "?"
    for name, value in frame.f_locals.items():
        if value is tensor:
            return str(name)
    names = [name for name, value in vars(frame.f_locals.get("self", Answers)).items() if value is tensor]
    return names[0] if names else frame.f_code.co_name
