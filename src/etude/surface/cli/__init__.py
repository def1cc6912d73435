"""The command line: `main(argv) -> int`.

Each command is a file of this folder named after it and a line of the table in commands.py. It imports what is heavy
inside its function.
"""

from collections.abc import Sequence

from etude.surface.cli.commands import COMMANDS

__all__ = ["COMMANDS", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. 0: done, or yes. 1: the answer is no. 2: an error. 129, 130, 141, 143: cut off."""
    from etude.surface.cli.app import app
    from etude.surface.cli.running import run

    return run(app, argv)
