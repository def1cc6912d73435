"""Sentences whose numbers say what they are: each with the expression from which it was worked out."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from string import Formatter
from typing import Any

from etude.tell.view.markup import Markup, escaped, joined

__all__ = ["Asked", "Sentence", "data_element", "html_of", "sentence", "series"]


@dataclass(frozen=True, slots=True)
class Asked:
    """One number, or name, as it is printed."""

    text: str
    query: str
    """The expression whose value it is (`analyse/expressions.py`)."""
    form: str
    """The format, by its name in `report/words.py`."""
    value: Any


class Sentence(str):
    """A text, with the numbers in it; as a text it is nothing but that."""

    __slots__ = ("parts",)
    parts: tuple[str | Asked, ...]

    @classmethod
    def of(cls, *parts: str | Asked) -> Sentence:
        found = cls("".join(part.text if isinstance(part, Asked) else part for part in parts))
        found.parts = parts
        return found

    @property
    def asked(self) -> tuple[Asked, ...]:
        return tuple(part for part in self.parts if isinstance(part, Asked))

    def capital(self) -> Sentence:
        """The same with a capital first letter."""
        first, *rest = self.parts or ("",)
        return self if isinstance(first, Asked) else Sentence.of(f"{first[:1].upper()}{first[1:]}", *rest)


def sentence(template: str, /, **named: str) -> Sentence:
    """`sentence("{share} of the time", share=subject.percent(...))`: a template, and what it names. Spaces at both
    ends are taken off."""
    parts: list[str | Asked] = []
    for text, name, _, _ in Formatter().parse(template):
        parts.append(text)
        if name is not None:
            value = named[name]
            parts += value.parts if isinstance(value, Sentence) else (value,)
    return _trimmed(parts)


def series(items: list[Sentence], left: Sentence | None = None) -> Sentence:
    """`a, b and c`, or `a, b and 4 more`."""
    shown = [*items, sentence("{left} more", left=left)] if left is not None else items
    parts: list[str | Asked] = []
    for number, one in enumerate(shown):
        parts += [] if not number else [" and "] if number == len(shown) - 1 else [", "]
        parts += one.parts
    return Sentence.of(*parts)


def _trimmed(parts: list[str | Asked]) -> Sentence:
    left = [part for part in parts if part]
    while left and isinstance(left[0], str) and not left[0].lstrip():
        left.pop(0)
    if left and isinstance(left[0], str):
        left[0] = left[0].lstrip()
    while left and isinstance(left[-1], str) and not left[-1].rstrip():
        left.pop()
    if left and isinstance(left[-1], str):
        left[-1] = left[-1].rstrip()
    return Sentence.of(*left)


def html_of(text: str) -> Markup:
    """A text as HTML, each of its numbers with its expression."""
    if not isinstance(text, Sentence):
        return escaped(text)
    return joined(data_element(part, escaped(part.text)) if isinstance(part, Asked) else part for part in text.parts)


def data_element(one: Asked, shown: Markup) -> Markup:
    """A number as it is shown, with its expression."""
    query, form = escape(one.query), escape(one.form)
    return Markup(f'<data value="{escape(str(one.value))}" data-query="{query}" data-form="{form}">{shown}</data>')
