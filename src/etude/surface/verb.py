"""A verb, declared once. Flags, YAML keys, Python arguments, MCP tools and the tables of the docs follow from it.

    VERBS = (Verb("idle", Idle, idle_inputs, idle),)

`asks` is a dataclass of figures, whose docstring is the help. `inputs` builds the complete frozen inputs of the run
from what was asked, before any work; what was given and not read by it is refused. `run` takes these inputs and nothing
else. `record` is what `--json`, Python callers and MCP clients get of the result, `show` what a reader sees.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from inspect import cleandoc
from typing import Any, Generic, TypeAlias, TypeVar

from etude.base.errors import AnswerNo
from etude.base.parameters import MCP, Spelling, ask, refuse_unread, request_of, whole

A = TypeVar("A")
I = TypeVar("I")  # noqa: E741
R = TypeVar("R")
Elsewhere: TypeAlias = Callable[[str, str], str]
"""(Parameter, verb) -> which other verbs read it."""


@dataclass(frozen=True, slots=True)
class Verb(Generic[A, I, R]):
    name: str
    """Its words: `serve`, `serve images`."""
    asks: type[A]
    inputs: Callable[[A], I]
    run: Callable[[I], R]
    _: KW_ONLY
    record: Callable[[R], Any] = lambda result: result
    show: Callable[[R], None] | None = None
    """Prints a result for a reader; by default its table, or its record, is printed."""
    reads: Callable[[R], Any] | None = None
    """What a reader sees where it is not the record: a record, a table, a text, several of them, or None for nothing.
    `show` prints what is none of these."""
    says: Callable[[R], Iterable[str]] = lambda result: ()
    """Lines that are said to a reader after what `reads` gives."""
    table: Callable[[R], Any] | None = None
    """What `--csv` and `--md` print, where `--json` has more."""
    code: Callable[[R], int] = lambda result: 0
    """The exit code: 1 is an answer of no."""
    refusal: Callable[[AnswerNo], Any] | None = None
    """What `--json` prints of an answer of no that ended the run; None: nothing."""
    tool: bool | None = None
    """Assistants may call it (MCP); None: if they may call its first word, `serve workflow` as `serve`."""
    answer: Callable[[R], Any] | None = None
    """What an assistant gets of a result; by default its record."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Predicted figures of its record of which no held-out row says anything, with what they are of: the record has a
    `basis` that says so, and so does a line for a reader."""
    tool_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that have another default for assistants."""

    @property
    def help(self) -> str:
        """The docstring of the declaration: one line, then examples and prose."""
        return cleandoc(self.asks.__doc__ or "")

    @property
    def line(self) -> str:
        return self.help.partition("\n")[0]

    def with_basis(self, record: Any) -> Any:
        """A record with `low`, `high` and `basis` of the figures of which nothing is known."""
        names = [name for name in self.unknown if isinstance(record, Mapping) and record.get(name) is not None]
        if not names:
            return record
        from etude.cost.estimates import without_evidence

        added = without_evidence({name: self.unknown[name] for name in names})
        return {**record, **{name: {**record.get(name, {}), **of} for name, of in added.items()}}

    def without_evidence(self, given: Mapping[str, Any]) -> list[str]:
        """Lines for a reader. A scenario that is printed predicts nothing."""
        if given.get("scenario"):
            return []
        return [f"range: no evidence for {about}" for about in dict.fromkeys(self.unknown.values())]

    @property
    def examples(self) -> list[str]:
        """Commands of the help, a continued line joined."""
        joined = re.sub(r"\s*\\\n\s*", " ", self.help)
        lines = [" ".join(line.split("   ")[0].split()) for line in joined.splitlines()]
        return [line for line in lines if line.startswith(f"etude {self.name}")]


@dataclass(frozen=True, slots=True)
class Resolved(Generic[I]):
    """A request that can be run: all that the run reads, and how its result is shown."""

    inputs: I
    output: Any
    given: Mapping[str, Any]
    """What was given, by name: for provenance, not for the run."""


def resolve(
    verb: Verb[Any, I, Any], given: Mapping[str, Any], spelling: Spelling, elsewhere: Elsewhere | None = None
) -> Resolved[I]:
    """The inputs of a run. Raises UsageError for whatever is unknown, wrong, or given and not read. `elsewhere` says
    which verbs read a name that this one does not have."""
    where = elsewhere or (lambda name, but: "")
    asked = ask(verb.asks, given, spelling, verb=verb.name, elsewhere=lambda name: where(name, verb.name))
    if spelling is MCP:
        request_of(asked).values.update({k: v for k, v in verb.tool_defaults.items() if k not in given})
    inputs = verb.inputs(asked)
    output = whole(asked.output) if any(f.name == "output" for f in fields(verb.asks)) else None
    refuse_unread(asked)
    return Resolved(inputs, output, dict(request_of(asked).given))
