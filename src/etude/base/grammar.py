"""Values in one line, `name:key=value,...`: one reader, and one error with the column of what is wrong.

    auto:p=0.055,every=11min;manual:p=0.125,every=1h    terms, with `;` between them: a name and its values
    0.3 room=4GB link=25GB/s                            words: a blank is as good as a comma
    0.8@24h, rank7@60s                                  `@`: a time or a place behind a value
    4..32, 7..10Gb/s                                    `..`: a range

    line("0.8@24h", "--diurnal", "0.8@24h").cut("@")                pieces
    [term.read(Stage) for term in terms(text, "--retry", EXAMPLE)]  dataclasses of figures

A line is cut into pieces, each with its column in the line, from 1. A piece is read as a figure (`count`, `time_ns`,
...), or `key=value` pieces together as a dataclass whose fields are figures (`fill`). There is one error:

    --retry: column 8: `p=x`: `x` is not a fraction
    hint: for example auto:p=0.055,every=11min

An empty line is the caller's business. Nothing before, between or behind separators is refused, and so are unknown
keys, keys that are given twice, and keys without a value.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from difflib import get_close_matches
from io import StringIO
from typing import Any, TypeVar

from etude.base.errors import ClusterError, EtudeError, UsageError
from etude.base.figures import key_of, read, scalar, value_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LinePiece:
    """A part of a line, without the blanks around it."""

    text: str
    column: int = 1
    """Of its first character, from 1."""
    where: str = ""
    """The option or the key that the line is the value of."""
    example: str = ""
    inside: str = ""
    """The item that it is a part of, for messages: `p=x` of `x`."""
    error: type[EtudeError] = UsageError

    def wrong(self, problem: str, hint: str = "") -> EtudeError:
        """The error to raise where this piece is wrong; by default with the example as its hint."""
        item = f"`{self.inside}`: " if self.inside not in ("", self.text) else ""
        place = f"{self.where}: column {self.column}" if self.where else f"column {self.column}"
        return self.error(item + problem, where=place, hint=hint or (self.example and f"for example {self.example}"))

    def said(self, problem: EtudeError) -> EtudeError:
        """The same for what another reader says of this piece; one that knows a column counted it from here."""
        inner = re.fullmatch(r"column (\d+)", problem.where)
        at = replace(self, column=self.column + int(inner[1]) - 1) if inner else self
        return at.wrong(problem.problem, problem.hint)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def part(self, first: int, last: int | None = None) -> LinePiece:
        """The characters from `first` on, up to, not including, `last`."""
        text = self.text[first:last]
        blanks = len(text) - len(text.lstrip())
        return replace(self, text=text.strip(), column=self.column + first + blanks, inside=self.inside or self.text)

    def cut(self, mark: str, *, last: bool = False) -> tuple[LinePiece, LinePiece | None]:
        """What is before the first (or the last) mark and behind it; None without one."""
        at = self.text.rfind(mark) if last else self.text.find(mark)
        return (self, None) if at < 0 else (self.part(0, at), self.part(at + len(mark)))

    def split(self, mark: str) -> tuple[LinePiece, ...]:
        """What is between marks; nothing between them is refused."""
        return self._between(re.escape(mark), mark)

    def words(self) -> tuple[LinePiece, ...]:
        """What is between commas or blanks."""
        return self._between(r"\s*,\s*|\s+", ",")

    def shell_words(self) -> tuple[LinePiece, ...]:
        """What is between blanks outside quotation marks, which are removed."""
        found, begin, stream = [], 0, StringIO(self.text)
        reader = shlex.shlex(stream, posix=True, punctuation_chars=False)
        reader.whitespace_split, reader.commenters = True, ""
        try:
            while (word := reader.get_token()) is not None:
                found.append(replace(self.part(begin, stream.tell()), text=word, inside=""))
                begin = stream.tell()
        except ValueError:
            raise self.part(begin).wrong("a quotation mark is not closed") from None
        return tuple(found)

    def _between(self, pattern: str, mark: str) -> tuple[LinePiece, ...]:
        marks = list(re.finditer(pattern, self.text))
        begins, ends = [0, *(one.end() for one in marks)], [*(one.start() for one in marks), len(self.text)]
        found = [replace(self.part(*span), inside="") for span in zip(begins, ends, strict=True)]
        for number, one in enumerate(found):
            if not one.text:
                place = f" {'behind' if number else 'before'} `{mark}`" if marks else ""
                raise one.wrong(f"a value is missing{place}")
        return tuple(found)

    # -- figures -------------------------------------------------------------------------------------------------------

    def figure(self, kind: str, *, zero: bool = False) -> Any:
        """The value of a kind of `figures.figure`, positive unless 0 is allowed."""
        if not self.text:
            raise self.wrong("a value is missing")
        try:
            return scalar(kind, self.text, "", zero=zero)
        except ClusterError as problem:
            has_unit = kind not in ("count", "number")  # the example says more of a plain number
            raise self.wrong(problem.problem, problem.hint if has_unit or not self.example else "") from None

    def count(self, *, zero: bool = False, most: int | None = None) -> int:
        found = int(self.figure("count", zero=zero))
        if most is not None and found > most:
            raise self.wrong(f"`{self.text}` is more than {most:,}")
        return found

    def number(self, least: float = 0.0, most: float = math.inf) -> float:
        """A number from `least` to `most`, both allowed; never negative."""
        found = float(self.figure("number", zero=True))
        if not least <= found <= most:
            limits = f"from {least:g} to {most:g}" if most < math.inf else f"of at least {least:g}"
            raise self.wrong(f"`{self.text}` is not a number {limits}")
        return found

    def fraction(self, *, zero: bool = False) -> float:
        return float(self.figure("fraction", zero=zero))

    def time_ns(self, *, zero: bool = False) -> int:
        return int(self.figure("time", zero=zero))

    def size_bytes(self, *, zero: bool = False) -> int:
        return int(self.figure("bytes", zero=zero))

    def bytes_per_s(self, *, zero: bool = False) -> int:
        return int(self.figure("bandwidth", zero=zero))

    def positive(self, kind: str, hint: str) -> Any:
        """The value of a kind of which 0 would be no value, but the lack of one; the hint says how that is written."""
        found = self.figure(kind, zero=True)
        if not found:
            raise self.wrong(f"`{self.text}` is not positive", hint)
        return found

    def choice(self, known: Collection[str], what: str = "value") -> str:
        """One of these words."""
        if self.text not in known:
            problem = f"unknown {what} `{self.text}`" if self.text else f"a {what} is missing"
            raise self.wrong(problem, nearest(self.text, known))
        return self.text


def line(text: str, where: str, example: str = "", error: type[EtudeError] = UsageError) -> LinePiece:
    """All of a line. `where`: the option or key whose value it is."""
    return replace(LinePiece(text, 1, where, example, error=error).part(0), inside="")


def nearest(word: str, known: Collection[str]) -> str:
    """A hint: the known word that is most like this one, and all that are known."""
    near = get_close_matches(word, known, 1)
    return (f"did you mean `{near[0]}`? " if near else "") + f"known: {', '.join(known)}"


def items(parts: Iterable[LinePiece], known: Collection[str] = (), also: Collection[str] = ()) -> KeyedPieces:
    """Words and `key=value` apart. `known`: the keys that are allowed, by default all; `also`: those that no message
    names."""
    bare, values = [], dict[str, LinePiece]()
    for part in parts:
        key, value = part.cut("=")
        if value is None:
            bare.append(part)
            continue
        key = replace(key, inside="")
        if not key.text:
            raise key.wrong(f"`{part.text}` has no key")
        if known and key.text not in known and key.text not in also:
            raise key.wrong(f"unknown key `{key.text}`", nearest(key.text, known))
        if key.text in values:
            raise key.wrong(f"`{key.text}` is given twice")
        if not value.text:
            raise replace(value, inside="").wrong(f"`{key.text}` has no value")
        values[key.text] = value
    return KeyedPieces(tuple(bare), values)


def pairs(parts: Iterable[LinePiece], known: Collection[str] = (), also: Collection[str] = ()) -> dict[str, LinePiece]:
    """Values by key of parts that are all `key=value`."""
    found = items(parts, known, also)
    if found.bare:
        raise found.bare[0].wrong(f"`{found.bare[0].text}` has no value")
    return found.values


def fill(cls: type[T], parts: Iterable[LinePiece], at: LinePiece, given: Mapping[str, Any] | None = None) -> T:
    """A dataclass of figures from `key=value` parts. `at`: what is wrong if a key is missing, or keys together make no
    sense; `given`: what is known without the line, which the line may say otherwise."""
    by_key = {key_of(f): f for f in fields(cls) if f.metadata}  # type: ignore[arg-type]
    known = by_key | {f.name: f for f in by_key.values()}
    whole = dict(given or {})
    for key, piece in pairs(parts, by_key, also=known).items():
        try:
            value_of(known[key], piece.text, "")
        except ClusterError as problem:
            raise piece.said(problem) from None
        whole[key] = piece.text
    for key, f in by_key.items():
        if f.default is MISSING and f.default_factory is MISSING and not {key, f.name} & whole.keys():
            raise at.wrong(f"key `{key}` is missing")
    try:
        return read(cls, whole, "")
    except ClusterError as problem:
        raise at.said(problem) from None


@dataclass(frozen=True, slots=True)
class KeyedPieces:
    """Words, and values by key."""

    bare: tuple[LinePiece, ...]
    values: dict[str, LinePiece]


@dataclass(frozen=True, slots=True)
class Term:
    """`name`, or `name:` and values."""

    name: LinePiece
    parts: tuple[LinePiece, ...] = ()

    def read(self, cls: type[T], given: Mapping[str, Any] | None = None) -> T:
        return fill(cls, self.parts, self.name, given)


def term(piece: LinePiece) -> Term:
    name, rest = piece.cut(":")
    name = replace(name, inside="")
    if not name.text:
        raise name.wrong("a name is missing")
    if rest is not None and not rest.text:
        raise rest.wrong("a value is missing behind `:`")
    return Term(name, rest.split(",") if rest is not None else ())


def terms(text: str, where: str, example: str = "") -> tuple[Term, ...]:
    """Terms with `;` between them."""
    return tuple(term(part) for part in line(text, where, example).split(";"))
