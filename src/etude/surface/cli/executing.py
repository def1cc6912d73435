"""Commands that studies and searches run: in this process, or in processes that take tasks as lines of JSON.

python -m etude.surface.cli.executing       such a process: a task a line on stdin, an answer a line on stdout
"""

import io
import sys
from collections.abc import Collection, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress


def executed(words: list[str]) -> tuple[int, str, str]:
    """A command of Etude, run in this process: exit code, stdout, stderr."""
    from etude.surface.cli import main

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


def options_of(words: Sequence[str]) -> tuple[str, Collection[str]]:
    """The name of the command that these words call, and its options; none of what is not a command."""
    from etude.surface.cli.app import command_meant

    name, command, rest = command_meant(list(words))
    while getattr(command, "commands", None) and rest and rest[0] in command.commands:
        name, command, rest = f"{name} {rest[0]}", command.commands[rest[0]], rest[1:]
    if command is None or getattr(command, "commands", None):
        return name, ()
    return name, {option for p in command.params for option in (*p.opts, *p.secondary_opts)} | {"--help"}


def serve_tasks() -> None:
    from etude.decide.study import serve
    from etude.surface.cli.running import termination_unwinds

    out = sys.stdout

    def write(line: str) -> None:
        out.write(line)
        out.flush()

    with suppress(KeyboardInterrupt), termination_unwinds():  # folders of tasks are removed
        serve(sys.stdin, write, executed)


if __name__ == "__main__":
    serve_tasks()
