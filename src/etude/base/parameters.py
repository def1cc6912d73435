"""What is asked of a verb: parameters declared as figures, given by any surface, each of them read or refused.

    @dataclass(frozen=True, kw_only=True)
    class Idle:
        path: str = argument("path", "a run")
        launches: bool = figure("switch", "show launches", False)
        calls: str = text("only calls whose names match", needs="launches", like="^cuda")

    asked = ask(Idle, {"path": "run/", "calls": "^cuda"}, FLAGS)    # error: --calls is read only with --launches
    inputs = idle_inputs(asked)                                     # reads `asked.path`, `asked.launches`, ...
    refuse_unread(asked)                                            # error: --launches is not read here

`ask` returns what looks like an `Idle` and notes which of its fields are read. Flags, YAML, Python and MCP differ in
how a parameter is spelled (`Spelling`), and in nothing else. A part (`engine: Engine = part(Engine)`) has its fields
among the parameters; `whole(asked.engine)` reads all of them, `given_in(asked.plan)` those that were given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields
from difflib import get_close_matches
from enum import Enum
from typing import Any, Final, TypeVar, cast

from etude.base.errors import UsageError
from etude.base.figures import key_of, usage_errors, value_of

T = TypeVar("T")
CLOSE: Final = 0.6
"""How alike an unknown name and a known one are for the one to be a misspelling of the other."""


@dataclass(frozen=True, slots=True)
class VerbParameter:
    """A figure of a verb, or of one of its parts."""

    name: str
    """As surfaces call it: `swap_bandwidth`."""
    field: Field[Any]
    part: str = ""
    """The field of the verb that it is a figure of; empty: one of its own."""
    panel: str = ""
    later: bool = False
    """What it needs is not checked by `ask`."""

    @property
    def about(self) -> Mapping[str, Any]:
        return self.field.metadata

    @property
    def kind(self) -> str:
        return str(self.about["kind"])

    @property
    def is_argument(self) -> bool:
        return self.about.get("place") == "argument"

    @property
    def is_required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    @property
    def default(self) -> Any:
        """Its value where it is not given; None where it has to be."""
        if self.field.default_factory is not MISSING:
            return self.field.default_factory()
        return None if self.field.default is MISSING else self.field.default


_KNOWN: Final[dict[type[Any], dict[str, VerbParameter]]] = {}


def parameters_of(cls: type[Any]) -> Mapping[str, VerbParameter]:
    """All parameters of a declaration by name, in its order; those of parts in the place of the part."""
    if cls not in _KNOWN:
        found: dict[str, VerbParameter] = {}
        for parameter in _declared(cls):
            if parameter.name in found:
                raise TypeError(f"{cls.__name__}: two parameters are called `{parameter.name}`")
            found[parameter.name] = parameter
        _KNOWN[cls] = found
    return _KNOWN[cls]


def _declared(cls: type[Any]) -> Iterator[VerbParameter]:
    for f in fields(cls):
        about = f.metadata
        if not about:
            continue
        if about["kind"] != "part":
            yield VerbParameter(key_of(f), f, panel=about.get("panel", ""))
            continue
        for inner in fields(about["of"]):
            left_out = inner.name in about["but"] or (about["only"] and inner.name not in about["only"])
            if inner.metadata and not left_out:
                yield VerbParameter(
                    key_of(inner), inner, f.name, inner.metadata.get("panel") or about["panel"], about["later"]
                )


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a surface writes the name of a parameter in messages, and the verb's own name."""

    surface: str
    name: Callable[[str], str]
    verb: Callable[[str], str]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _identifier(verb: str) -> str:
    return verb.replace(" ", "_").replace("-", "_")


FLAGS: Final = Spelling("flags", _flag, lambda verb: f"etude {verb}")
YAML: Final = Spelling("yaml", lambda name: f"`{name}`", lambda verb: verb)
PYTHON: Final = Spelling("python", lambda name: f"`{name}`", lambda verb: f"etude.{_identifier(verb)}")
MCP: Final = Spelling("mcp", lambda name: f"`{name}`", _identifier)


@dataclass(slots=True)
class VerbRequest:
    """What was given to a verb, and what has been read of it."""

    cls: type[Any]
    verb: str
    spelling: Spelling
    given: dict[str, Any]
    """Name -> value as it was given."""
    values: dict[str, Any]
    """Name -> value as it is read; every parameter has one."""
    read: set[str] = field(default_factory=set)


def ask(
    cls: type[T], given: Mapping[str, Any], spelling: Spelling = PYTHON, *, verb: str = "",
    elsewhere: Callable[[str], str] = lambda name: "",
) -> T:  # fmt: skip
    """A value of `cls` that notes which of its fields are read. Unknown names, values outside their range, and
    parameters without the one that they need are refused. `elsewhere` says which verb does read a name."""
    known = parameters_of(cls)
    full = {p.field.name: name for name, p in known.items()}
    said: dict[str, Any] = {}
    for name, value in given.items():
        own = name if name in known else full.get(name, name)
        if own not in known:
            raise unknown(name, known, spelling, verb, elsewhere(name))
        if own in said:
            raise UsageError(f"{spelling.name(own)} is given twice", hint="leave one of them out")
        said[own] = value
    values = {name: _value(p, said[name], spelling) if name in said else p.default for name, p in known.items()}
    request = VerbRequest(cls, verb, spelling, said, values)
    missing = [name for name, p in known.items() if p.is_required and name not in said]
    if missing:
        p = known[missing[0]]
        example = f"for example {p.about['like']}" if "like" in p.about else _help_of(request)
        what = missing[0].upper() if p.is_argument and spelling is FLAGS else spelling.name(missing[0])
        raise UsageError(f"{what} is missing", hint=f"{p.about['doc']}; {example}")
    for name in said:
        _check_needs(request, known[name])
    return cast(T, _Asked(request, ""))


def unknown(name: str, known: Mapping[str, Any], spelling: Spelling, verb: str, elsewhere: str = "") -> UsageError:
    """The error for a name that the verb does not have."""
    near = get_close_matches(name, known, 1, CLOSE)
    if elsewhere and not (near and near[0].replace("_", "") == name.replace("_", "")):
        return UsageError(f"{spelling.name(name)} is not read by `{spelling.verb(verb)}`", hint=elsewhere)
    meant = f"did you mean {spelling.name(near[0])}? " if near else ""
    where = f"`{spelling.verb(verb)}`" if verb else ""
    names = ", ".join(spelling.name(one).strip("`") for one in known)
    what = "No such option: " if spelling is FLAGS else "unknown parameter "
    return UsageError(f"{what}{spelling.name(name)}", where=where, hint=f"{meant}known: {names}")


def _value(p: VerbParameter, given: Any, spelling: Spelling) -> Any:
    where = p.name.upper() if p.is_argument and spelling is FLAGS else spelling.name(p.name)
    with usage_errors():
        return None if given is None and p.field.default is None else value_of(p.field, given, where)


def _check_needs(request: VerbRequest, p: VerbParameter) -> None:
    needs = "" if p.later else p.about.get("needs", "")
    if needs and not any(_holds(request, one) for one in needs.split("|")):
        name = request.spelling.name
        wanted = " or ".join(
            name(other) + (f" {value}" if value else "")
            for other, _, value in (one.partition("=") for one in needs.split("|"))
        )
        raise UsageError(f"{name(p.name)} is read only with {wanted}", hint=_help_of(request))


def _holds(request: VerbRequest, condition: str) -> bool:
    name, equals, wanted = condition.partition("=")
    if name not in request.values:
        raise TypeError(f"{request.cls.__name__}: `needs` names `{name}`, which is no parameter")
    value = request.values[name]
    if isinstance(value, Enum):
        value = value.value
    if equals:
        return str(value) == wanted
    p = parameters_of(request.cls)[name]
    return value != p.default if p.kind == "count" else bool(value)  # a count of 1 may be one's way to say none


def _help_of(request: VerbRequest) -> str:
    return f"etude {request.verb} --help" if request.verb else ""


class _Asked:
    """What `ask` returns: the fields of the declaration, each of which counts as read once it is taken."""

    __slots__ = ("_part", "_request")

    def __init__(self, request: VerbRequest, part: str) -> None:
        self._request, self._part = request, part

    def __getattr__(self, name: str) -> Any:
        request, part = self._request, self._part
        for p in parameters_of(request.cls).values():
            if p.part == part and p.field.name == name:
                request.read.add(p.name)
                return request.values[p.name]
        if not part and any(f.name == name and f.metadata.get("kind") == "part" for f in fields(request.cls)):
            return _Asked(request, name)
        raise AttributeError(f"{request.cls.__name__} has no parameter `{name}`")


def request_of(asked: Any) -> VerbRequest:
    """What is behind a value of `ask`: for provenance and messages, not for the run."""
    return cast(VerbRequest, object.__getattribute__(asked, "_request"))


def whole(part: T, but: Collection[str] = ()) -> T:
    """A part as the dataclass that it is; all of its parameters count as read, but those of `but`, which are left at
    their defaults."""
    asked = cast(_Asked, part)
    request, name = request_of(asked), asked._part
    cls = next(f.metadata["of"] for f in fields(request.cls) if f.name == name)
    found = {}
    for p in parameters_of(request.cls).values():
        if p.part == name and p.name not in but:
            request.read.add(p.name)
            if p.name in request.given:
                found[p.field.name] = request.values[p.name]
    with usage_errors():
        return cast(T, cls(**found))


def given_in(part: Any, but: Collection[str] = ()) -> dict[str, Any]:
    """What was given of a part, by name and as it is read, but for some; all of it counts as read."""
    request, name = request_of(part), cast(_Asked, part)._part
    known = parameters_of(request.cls).values()
    found = [p.name for p in known if p.part == name and p.name in request.given and p.name not in but]
    request.read.update(found)
    return {one: request.values[one] for one in found}


def is_given(asked: Any, name: str) -> bool:
    """Whether a parameter was given, whatever its value; this alone does not read it."""
    return name in request_of(asked).given


def spelled(asked: Any, name: str) -> str:
    """A parameter as the one who asked writes it, for messages."""
    return request_of(asked).spelling.name(name)


@contextmanager
def naming(asked: Any, *names: str) -> Iterator[None]:
    """What is wrong inside is said of those of these parameters that were given, with their values."""
    try:
        yield
    except UsageError as problem:
        given = request_of(asked).given
        said = " ".join(f"{spelled(asked, name)} {_shown(given[name])}" for name in names if name in given)
        raise UsageError(problem.problem, where=said or problem.where, hint=problem.hint) from None


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def only_one(asked: Any, *names: str) -> str:
    """The one of these parameters that is given and on, or nothing; more than one is refused. All count as read."""
    on = [name for name in names if getattr(asked, name) not in (None, False, "", (), 0)]
    if len(on) > 1:
        said = [spelled(asked, name) for name in names]
        raise UsageError(f"only one of {', '.join(said[:-1])} and {said[-1]} can be given")
    return on[0] if on else ""


def only_with(asked: Any, other: str, *names: str) -> None:
    """Refuses those of these parameters that were given: they are read only with another, which is not there. For what
    `needs` cannot say, since a file may replace the other."""
    for name in names:
        if is_given(asked, name):
            raise UsageError(
                f"{spelled(asked, name)} is read only with {spelled(asked, other)}", hint=_help_of(request_of(asked))
            )


def replaces(asked: Any, one: str, *others: str) -> None:
    """Refuses those of the other parameters that were given: this one replaces them."""
    for other in others:
        if is_given(asked, other):
            raise UsageError(
                f"{spelled(asked, other)} cannot be combined with {spelled(asked, one)}", hint="leave one of them out"
            )


def refuse_unread(asked: Any) -> None:
    """Raises UsageError for the first parameter that was given and that nothing has read."""
    request = request_of(asked)
    known = parameters_of(request.cls)
    others = [request.spelling.name(n) for n in request.given if n in request.read and not known[n].is_argument]
    for name in request.given:
        if name not in request.read:
            hint = (f"it was given with {', '.join(others)}; " if others else "") + _help_of(request)
            raise UsageError(f"{request.spelling.name(name)} was given, but this run does not read it", hint=hint)
