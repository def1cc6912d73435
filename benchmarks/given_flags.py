"""Which flags does a command accept without any effect on its answer?

    python benchmarks/given_flags.py serve gpt2 --system dgx-h100 --rate 8 --count 12
    python benchmarks/given_flags.py idle run/ --launches

Runs the command with `--json`, then once more with each further parameter of its verb, at a valid value that differs
from the default and with what the parameter needs, and compares what is printed. A flag that is accepted and changes
nothing is listed: it is data that decides (a cache that nothing finds anything in), or it is not read, which is a
mistake in the declaration of the verb. Nothing is written: parameters that name what is written are left out.
"""

import io
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

from etude.base.parameters import VerbParameter, parameters_of
from etude.surface.cli import main
from etude.surface.cli.app import _verb_meant
from etude.surface.cli.build import _names
from etude.surface.cli.commands import COMMANDS
from etude.surface.cli.registry import verb_named

VALUES = {
    "time": "7s", "bytes": "3MB", "bandwidth": "3GB/s", "rate": "3T", "power": "321", "fraction": "0.37",
    "number": "1.75",
}  # fmt: skip
"""Kind -> a value unlike any default."""


def asked(words: list[str]) -> tuple[int, str, str]:
    """Exit code, and what a command prints on stdout and on stderr."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def values(p: VerbParameter) -> Iterator[Any]:
    """Valid values of a parameter that differ from its default."""
    if "like" in p.about:
        yield from p.about["like"] if isinstance(p.about["like"], list) else [p.about["like"]]
    elif p.kind in ("switch", "flag"):
        yield not p.default
    elif p.kind == "choice":
        yield from (one.value for one in p.about["of"] if one.value and one != p.default)
    elif p.kind == "count":
        yield from (n for n in (1, 2, 8) if n != p.default)
    elif p.kind in VALUES:
        yield VALUES[p.kind]


def flag(p: VerbParameter, value: Any) -> list[str]:
    """The words that give a parameter this value."""
    name = f"--{p.name.replace('_', '-')}"
    if isinstance(value, bool):
        return [name if value else f"--no-{p.name.replace('_', '-')}"]
    return [name, str(value)]


def with_needs(p: VerbParameter, known: Any, words: list[str]) -> Iterator[list[str]]:
    """The command as it is, and with each of the parameters that this one needs."""
    yield words
    for need in filter(None, p.about.get("needs", "").split("|")):
        name, _, value = need.partition("=")
        if not said(known[name], words):
            yield from ([*words, *flag(known[name], one)] for one in ([value] if value else values(known[name])))


def said(p: VerbParameter, words: list[str]) -> bool:
    names = {part for name in _names(p) for part in name.split("/")}
    return any(word.partition("=")[0] in names for word in words)


def unchanged(words: list[str]) -> Iterator[str]:
    """Flags that the command accepts, and that do not change what it prints."""
    count = 2 if " ".join(words[:2]) in COMMANDS else 1
    name, rest = _verb_meant(" ".join(words[:count]), words[count:])
    words = [*name.split(), *rest, *(["--json"] if "--json" not in rest else [])]
    known = parameters_of(verb_named(name).asks)
    for p in known.values():
        if p.is_argument or p.part == "output" or p.kind == "out" or said(p, words):
            continue
        for base in with_needs(p, known, words):
            code, before, _ = asked(base)
            for value in values(p) if code == 0 else ():
                more = flag(p, value)
                code, after, told = asked([*base, *more])
                if code == 0 and after == before:
                    yield f"{' '.join(more):40} after `{' '.join(base)}`"
                elif code and more[0] not in told:
                    yield f"{' '.join(more):40} refused without its name: {told.splitlines()[0] if told else code}"


if __name__ == "__main__":
    for line in unchanged(sys.argv[1:]):
        print(line, flush=True)
