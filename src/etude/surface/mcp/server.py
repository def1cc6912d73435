"""The tools as the `mcp` package serves them: one call at a time, results bounded, errors with their hint."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from etude import __version__
from etude.base.errors import EtudeError, UsageError
from etude.surface.mcp.access import Access
from etude.surface.mcp.bounds import bounded
from etude.surface.mcp.tools import TOOLS

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

INSTRUCTIONS: Final = (
    "Execution traces of machine-learning jobs (MLCommons Chakra). Paths are relative to the root of this server. "
    "Begin with `info`; `breakdown` and `critical_path` show where the time goes; `predict` needs no trace."
)


def make_server(access: Access) -> MCPServer[Any]:
    """A server of all tools; `.run()` serves it on stdin and stdout."""
    try:
        from mcp.server.mcpserver import MCPServer
        from mcp.types import ToolAnnotations
    except ImportError:
        raise UsageError("the package `mcp` (2.0 or newer) is not installed", hint="pip install 'etude[mcp]'") from None

    server = MCPServer("etude", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    turn = threading.Lock()
    for tool in TOOLS:
        writes = tool.__name__ == "edit" and access.write is not None
        notes = ToolAnnotations(read_only_hint=not writes, destructive_hint=False, open_world_hint=False)
        server.add_tool(_served(tool, access, turn), annotations=notes, structured_output=True)
    return server


def _served(tool: Callable[..., dict[str, Any]], access: Access, turn: threading.Lock) -> Callable[..., dict[str, Any]]:
    """The tool without its access, as a client calls it. Etude's own errors are returned with their hint; any other is
    a crash, for which a client only gets the name of the tool."""
    from mcp.server.mcpserver.exceptions import ToolError

    @wraps(tool)
    def call(**given: Any) -> dict[str, Any]:
        try:
            with turn:
                return bounded(tool(access, **given))
        except EtudeError as problem:
            raise ToolError(str(problem)) from problem
        except OSError as problem:
            raise ToolError(f"cannot be read: {problem.strerror or type(problem).__name__}") from problem

    signature = inspect.signature(tool, eval_str=True)
    wanted = [parameter for name, parameter in signature.parameters.items() if name != "access"]
    vars(call)["__signature__"] = signature.replace(parameters=wanted)
    call.__annotations__ = {p.name: p.annotation for p in wanted} | {"return": dict[str, Any]}
    return call
