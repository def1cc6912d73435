"""The command line: `main(argv) -> int`.

Each command is a file of this folder named after it, listed in `COMMANDS`, and imports what is heavy inside its
function: `etude --help` loads every one of these files and must stay quick.
"""

from collections.abc import Sequence

# In the order in which `etude --help` shows them within their panels.
COMMANDS: tuple[str, ...] = (
    "info",
    "check",
    "diff",
    "query",
    "convert",
    "collect",
    "link",
    "simulate",
    "systems",
    "breakdown",
    "idle",
    "kernels",
    "collectives",
    "critical_path",
    "stragglers",
    "compare",
    "roofline",
    "memory",
    "demo",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. 0: done, or yes. 1: the answer is no. 2: an error. 129, 130, 141, 143: cut off."""
    from importlib import import_module

    from etude.cli.app import app
    from etude.cli.running import run

    for name in COMMANDS:
        import_module(f"etude.cli.{name}")
    return run(app, argv)
