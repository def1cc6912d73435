from dataclasses import dataclass
from typing import Any

from etude.base.figures import figure
from etude.surface.mcp.access import FolderAccess
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
    limit_ns: int = figure("time", "a call that takes longer is ended", 120_000_000_000)
    memory_bytes: int = figure("bytes", "memory that a call may take, where the system can bound it", 4_000_000_000)


def run(given: tuple[FolderAccess, int, int]) -> None:
    from etude.surface.cli.registry import all_verbs
    from etude.surface.mcp import serve

    access, limit_ns, memory_bytes = given
    serve(access, all_verbs(), limit_ns, memory_bytes)


def _nothing(found: Any) -> None:
    """The server has said all."""


def inputs(asked: Mcp) -> tuple[FolderAccess, int, int]:
    return FolderAccess.of(asked.root, asked.write), asked.limit_ns, asked.memory_bytes


VERBS = (Verb("mcp", Mcp, inputs, run, show=_nothing),)
