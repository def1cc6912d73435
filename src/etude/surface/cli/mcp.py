from pathlib import Path
from typing import Annotated

import typer

from etude.surface.cli.app import LOOK, app


@app.command(rich_help_panel=LOOK)
def mcp(
    root: Annotated[
        Path, typer.Option("--root", help="Only files below this folder may be opened; links out of it are refused.")
    ] = Path(),
    write: Annotated[
        Path | None,
        typer.Option("--write", help="Let `edit` write copies below this folder; without it nothing is written."),
    ] = None,
) -> None:
    """A server for assistants (Model Context Protocol, on stdin and stdout): ask about traces, predict, what-if

    etude mcp --root traces/
    etude mcp --root traces/ --write copies/

    Tools: info, query, breakdown, critical_path, compare, predict, edit. Needs `pip install 'etude[mcp]'`;
    docs/mcp.md shows how a client is configured.
    """
    from etude.surface.mcp import Access, make_server

    make_server(Access.of(root, write)).run()
