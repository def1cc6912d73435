"""What `etude COMMAND --help` prints: usage, what it does, arguments, then options in named panels.

Two columns: names, each of them whole at 80 columns, and what the option does. Of several long names the first is the
name; the others are old spellings, which work and are not shown.
"""

import io
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from etude.surface.cli.groups import below

NAMES = 30
"""Letters of the column of names at most; a longer name has a line of its own."""


FEW = 8
"""Options up to which a command has no panels but those that its options name."""


def dressed(command: Any, panels: Any) -> Any:
    """The command, and those below it, with options in panels and this help; `panels(words)` says which."""
    _dress(command, command.name or "", panels)
    return command


def _dress(command: Any, words: str, panels: Any) -> None:
    place, shown = panels(words), options(command)
    for option in shown if len(shown) > FEW else ():
        option.rich_help_panel = place(option)
    vars(command)["format_help"] = partial(write_help, command)
    for name, inner in getattr(command, "commands", {}).items():
        _dress(inner, f"{words} {name}", panels)


def options(command: Any) -> list[Any]:
    """Options that are shown: of a verb also those that are rare, once `--help-all` asks for them."""
    found = [p for p in command.params if p.param_type_name == "option"]
    if getattr(command, "show_all", False):
        return [p for p in found if not p.name.startswith("_")]
    return [p for p in found if not getattr(p, "hidden", False)]


def write_help(command: Any, context: Any, formatter: Any) -> None:
    """Into the formatter, in colours if a terminal reads it."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    text = io.StringIO()
    console = Console(file=text, force_terminal=sys.stdout.isatty(), legacy_windows=False)
    path = context.command_path
    alone = "" if getattr(command, "is_group", False) else f"{path} {_usage(command)}"
    deeper = f"{path} COMMAND ..." if below(command.name or "") else ""
    usage = "Usage: " + "\n       ".join(filter(None, (alone, deeper)))
    console.print(Padding(Text(usage, style="bold"), (1, 1, 0, 1)))
    for part in _paragraphs(f"{command.help or ''}\n\n{getattr(command, 'epilog', '') or ''}"):
        console.print()
        for line in part:
            indent = len(line) - len(line.lstrip())
            console.print(Padding(Text(line.strip()), (0, 1, 0, 1 + indent)))
    console.print()
    if getattr(command, "rare_options", 0) and not getattr(command, "show_all", False):
        console.print(Padding(Text(f"{command.rare_options} more options: {path} --help-all"), (0, 1, 1, 1)))
    for title, rows in sorted(_panels(command), key=lambda panel: _rank(panel[0])):
        console.print(_panel(title, rows))
    formatter.write("\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n")


def _usage(command: Any) -> str:
    words = ["[OPTIONS]"]
    for p in _arguments(command):
        name = _argument(p) + ("..." if p.nargs == -1 and not _argument(p).endswith("...") else "")
        words.append(name if p.required or p.name in getattr(command, "needed", ()) else f"[{name}]")
    return " ".join([*words, *(["COMMAND ..."] if getattr(command, "commands", None) else [])])


def _arguments(command: Any) -> list[Any]:
    return [p for p in command.params if p.param_type_name == "argument" and not getattr(p, "hidden", False)]


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _paragraphs(text: str) -> Iterator[list[str]]:
    """Paragraphs as lists of lines: prose becomes one line, which the console wraps; commands and indented text keep
    theirs."""
    for part in text.replace("\b\n", "").split("\n\n"):
        lines = [line.rstrip() for line in part.strip("\n").splitlines()]
        if not any(lines):
            continue
        exact = any(line.startswith((" ", "etude ", "at_most:")) for line in lines)
        yield lines if exact else [" ".join(lines)]


def _rank(title: str) -> int:
    """Sort key of a panel: arguments first, then panels of this command only, then those that many commands have."""
    order = ("Arguments", "Commands", "Options", "Analysis")
    last = ("Input", "Machine", "Simulation", "Output")
    return order.index(title) if title in order else 100 + last.index(title) if title in last else 50


def _panels(command: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    if given := _arguments(command):
        yield "Arguments", [(_argument(p), p.help or "") for p in given]
    panels: dict[str, list[tuple[str, str]]] = {}
    for option in options(command):
        panels.setdefault(option.rich_help_panel or "Options", []).append((named(option), option.help or ""))
    yield from panels.items()
    if inner := _below(command):
        yield "Commands", list(inner.items())


def _below(command: Any) -> dict[str, str]:
    """Subcommand -> the first line of its help."""
    inner = [c for c in getattr(command, "commands", {}).values() if not c.hidden]
    return below(command.name or "") or {c.name: (c.help or "").partition("\n")[0] for c in inner}


def named(option: Any) -> str:
    """`-o, --out PATH`; a flag with its opposite on the next line."""
    short = [name for name in option.opts if not name.startswith("--")]
    long = [name for name in option.opts if name.startswith("--")][:1]
    text = ", ".join([*short, *long]) + ("" if option.is_flag else f" {option.metavar or 'TEXT'}")
    return "\n".join([text, *option.secondary_opts[:1]])


def _panel(title: str, rows: list[tuple[str, str]]) -> Any:
    from rich import box
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    widest = max(len(line) for names, _ in rows for line in names.splitlines())
    table.add_column(width=min(widest, NAMES), no_wrap=False, overflow="fold", style="cyan")
    table.add_column(ratio=1, overflow="fold")
    for names, about in rows:
        table.add_row(Text(names), Text(about))
    return Panel(table, title=title, title_align="left", box=box.ROUNDED, border_style="dim")
