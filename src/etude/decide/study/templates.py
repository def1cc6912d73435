"""Parameters put into the commands and files of a study.

predict {model} --tp {tp} {flags}     {tp} is a parameter, {2 * tp} an expression; {flags} is every parameter that no
                                      other place names, as `--name value`
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from etude.base.errors import UsageError
from etude.decide.study.expressions import evaluated, names_in

_BRACES = re.compile(r"\{([^{}]*)\}")
FLAGS = "flags"


def named(template: str, where: str) -> set[str]:
    """The parameters that a text names, `flags` among them."""
    return {name for inner in _BRACES.findall(template) for name in names_in(inner, where)}


def command(template: str, given: Mapping[str, Any], elsewhere: set[str], where: str) -> tuple[str, ...]:
    """The words of a command. A word that is one parameter alone and empty is left out; a list is several words."""
    own = named(template, where)
    words: list[str] = []
    literal = {word.partition("=")[0] for word in split(template, where) if word.startswith("--")}
    for word in split(template, where):
        inner = _BRACES.fullmatch(word)
        if inner and inner[1].strip() == FLAGS:
            more = flags({k: v for k, v in given.items() if k not in own and k not in elsewhere})
            if twice := [word for word in more if word in literal]:
                raise UsageError(f"`{twice[0]}` is in the command and a parameter as well", where=where)
            words += more
        elif inner:
            value = evaluated(inner[1], given, where)
            words += (
                [shown(v) for v in value] if isinstance(value, list) else [shown(value)] * (value not in ("", None))
            )
        else:
            words.append(text(word, given, where))
    return tuple(words)


def split(template: str, where: str) -> list[str]:
    """Words as a shell cuts them; braces hold together."""
    held: list[str] = []

    def hold(match: re.Match[str]) -> str:
        held.append(match[0])
        return f"\0{len(held) - 1}\0"

    try:
        words = shlex.split(_BRACES.sub(hold, template))
    except ValueError as problem:
        raise UsageError(f"`{template}`: {problem}".lower(), where=where) from None
    return [re.sub("\0(\\d+)\0", lambda m: held[int(m[1])], word) for word in words]


def joined(words: Sequence[str]) -> str:
    """The command whose words `split` gives."""
    found = []
    for word in words:
        held = _BRACES.findall(word)
        quoted = shlex.quote(_BRACES.sub("@@", word))
        for inner in held:
            quoted = quoted.replace("@@", f"{{{inner}}}", 1)
        found.append(quoted)
    return " ".join(found)


def flags(given: Mapping[str, Any]) -> list[str]:
    """`--name value`; true is the flag alone, false, none and nothing are left out, a list repeats it."""
    words: list[str] = []
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                words.append(flag)
            elif one is not False and one is not None and one != "":  # 0 is a value
                words += [flag, shown(one)]
    return words


def text(template: str, given: Mapping[str, Any], where: str) -> str:
    return _BRACES.sub(lambda m: shown(evaluated(m[1], given, where)), template)


def filled(value: Any, given: Mapping[str, Any], where: str) -> Any:
    """A text, list or mapping with its parameters put in; one alone keeps its type."""
    if isinstance(value, str):
        inner = _BRACES.fullmatch(value)
        return evaluated(inner[1], given, where) if inner else text(value, given, where)
    if isinstance(value, Mapping):
        return {
            text(str(k), given, where) if isinstance(k, str) else k: filled(v, given, where) for k, v in value.items()
        }
    if isinstance(value, Sequence):
        return [filled(v, given, where) for v in value]
    return value


def named_in(value: Any, where: str) -> set[str]:
    """The parameters that a text, list or mapping names."""
    if isinstance(value, str):
        return named(value, where)
    if isinstance(value, Mapping):
        return set().union(*(named_in(k, where) | named_in(v, where) for k, v in value.items()))
    if isinstance(value, Sequence):
        return set().union(*(named_in(v, where) for v in value))
    return set()


def shown(value: Any) -> str:
    """A value as a command takes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return str(value)
