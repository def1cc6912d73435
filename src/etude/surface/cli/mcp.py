from dataclasses import dataclass
from typing import Any

from etude.base.figures import figure
from etude.surface.verb import Verb


@dataclass(frozen=True, kw_only=True)
class Mcp:
    """A server for assistants (Model Context Protocol, on stdin and stdout): ask about traces, predict, what-if

    etude mcp --root traces/
    etude mcp --root traces/ --write copies/

    Tools: info, query, check, diff, every analysis, simulate, predict, search, serve, score, edit; with --write also
    report. Needs `pip install 'etude[mcp]'`; docs/mcp.md shows how a client is configured.
    """

    root: str = figure("path", "only files below this folder may be opened; links out of it are refused", ".")
    write: str | None = figure("path", "let tools write below this folder; without it nothing is written", None)


def run(given: tuple[str, str | None]) -> None:
    from etude.surface.cli.registry import all_verbs
    from etude.surface.mcp import FolderAccess, serve

    serve(FolderAccess.of(*given), all_verbs())


def _nothing(found: Any) -> None:
    """The server has said all."""


VERBS = (Verb("mcp", Mcp, lambda asked: (asked.root, asked.write), run, show=_nothing),)
