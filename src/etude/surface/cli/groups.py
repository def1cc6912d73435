"""Commands below a command: `etude ops show`, `etude generate micro`. All of them behave alike.

`etude ops --help` lists them; without one the help is shown and the exit code is 2, unless there is something that the
command does by itself; an unknown word is an error that lists the known ones; options follow them.
"""

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.surface.cli.arguments import values
from etude.surface.cli.commands import COMMANDS, GROUPS, file_of

CLOSE = 0.7
"""How alike a word and the name of a command are for the one to be taken for a mistyped other."""


def below(name: str) -> dict[str, str]:
    """Next word -> its line, of verbs behind these words: `generate micro`, `chakra converter PyTorch`."""
    from etude.surface.cli.registry import verbs_in

    start = f"{name} "
    listed = {words.removeprefix(start): line for words, (_, line) in COMMANDS.items() if words.startswith(start)}
    first = name if name in COMMANDS else name.partition(" ")[0]
    inner = verbs_in(file_of(first)) if first in COMMANDS else {}
    own = {}
    for words, verb in inner.items():
        if words.startswith(start):
            word, deeper, _ = words.removeprefix(start).partition(" ")
            own[word] = GROUPS[start + word] if deeper else verb.line
    return own | listed


def check_below(name: str, params: Sequence[Any], args: list[str]) -> None:
    """Refuses what was meant as a command below this one: a mistyped one, or one behind its options."""
    known = below(name)
    at = next((at for at, option in values(params, args) if not option), None) if known else None
    if at is None:
        return
    word = args[at]
    if word in known:
        raise misplaced(f"etude {name}", word, args[0])
    if "/" not in word and get_close_matches(word, known, cutoff=CLOSE) and not Path(word).exists():
        raise no_such(f"etude {name}", word, known, "no file or folder is called so; ")


def no_such(path: str, word: str, known: Collection[str], besides: str = "") -> UsageError:
    near = get_close_matches(word, known, 1, CLOSE)
    meant = f". Did you mean '{near[0]}'?" if near else ""
    hint = f"{besides}known: {', '.join(known)}; {path} --help"
    return UsageError(f"`{path}` has no command '{word}'{meant}", hint=hint)


def misplaced(path: str, word: str, option: str) -> UsageError:
    return UsageError(f"options of `{path} {word}` must follow it", hint=f"{path} {word} {option} ...")
