"""Lengths and shades as classes. The policy of a page refuses style attributes, so it has a rule for each class."""

from __future__ import annotations

import re

from etude.tell.view.markup import Markup, escaped

__all__ = ["in_notebook", "sized", "sizes"]

_RULES = {
    "w": "width:{}%",
    "most": "max-width:{}px",
    "heat": "fill:color-mix(in srgb, var(--heat-1) {}%, var(--heat-0))",
}
_SIZED = re.compile(r"\b(w|most|heat)-(\d+(?:_\d+)?)\b")


def sized(percent: float, rule: str = "w") -> str:
    """The class of an element of this width in percent; `most`: of at most that many pixels; `heat`: of that shade."""
    return f"{rule}-{f'{percent:.3f}'.rstrip('0').rstrip('.').replace('.', '_')}"


def sizes(html: str, within: str = "") -> str:
    """The rules of all classes of `sized` in some HTML."""
    found = sorted(set(_SIZED.findall(html)))
    return "".join(f"{within}.{rule}-{n}{{{_RULES[rule].format(n.replace('_', '.'))}}}" for rule, n in found)


def in_notebook(html: str) -> Markup:
    """A picture of a page within a card of `notebook`, where its page's rules are not there."""
    return Markup(f"<style>{sizes(html, '.etude-nb ')}</style>{escaped(html)}")
