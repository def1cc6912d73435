"""The tools as the `mcp` package serves them: one call at a time, results bounded, errors with their hint."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from etude import __version__
from etude.base.errors import EtudeError, UsageError
from etude.base.parameters import parameters_of
from etude.surface.mcp.access import FolderAccess
from etude.surface.mcp.schema import schema
from etude.surface.mcp.tools import call, tools
from etude.surface.mcp.worker import ToolProcess
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

INSTRUCTIONS: Final = (
    "Execution traces of machine-learning jobs (MLCommons Chakra). Paths are relative to the root of this server. "
    "Begin with `info`; `breakdown` and `critical_path` show where the time goes; `predict` needs no trace."
)


Answer: TypeAlias = Callable[[str, Mapping[str, Any]], tuple[bool, Any]]
"""From the name of a tool and what is given to: is it an error, and the answer or what is wrong."""


def make_server(
    access: FolderAccess, verbs: Iterable[Verb[Any, Any, Any]], answer: Answer | None = None
) -> Server[Any]:
    """A server of the verbs that are tools; `serve` runs it. Without an `answer` calls are answered here."""
    try:
        from mcp import types
        from mcp.server.lowlevel import Server
    except ImportError:
        raise UsageError("the package `mcp` (2.0 or newer) is not installed", hint="pip install 'etude[mcp]'") from None
    import anyio

    known, turn = tools(access, verbs), threading.Lock()

    def in_turn(name: str, given: Mapping[str, Any]) -> tuple[bool, Any]:
        with turn:
            return answer(name, given) if answer is not None else call_tool(known, name, given, access)

    async def listed(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_described(name, verb, access) for name, verb in known.items()])

    async def called(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        is_error, found = await anyio.to_thread.run_sync(in_turn, params.name, params.arguments or {})
        text = found if is_error else json.dumps(found)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)],
            structured_content=None if is_error else found,
            is_error=is_error,
        )

    return Server("etude", version=__version__, instructions=INSTRUCTIONS, on_list_tools=listed, on_call_tool=called)


def serve(access: FolderAccess, verbs: Iterable[Verb[Any, Any, Any]], limit_ns: int, memory_bytes: int) -> None:
    """Answers a client on stdin and stdout until it is gone, in a process that may take so long for a call."""
    worker: ToolProcess | None = None

    def answer(name: str, given: Mapping[str, Any]) -> tuple[bool, Any]:
        nonlocal worker
        worker = worker or ToolProcess(access, limit_ns, memory_bytes)
        return worker.answer(name, given)

    server = make_server(access, verbs, answer)
    import anyio
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    try:
        anyio.run(run)
    finally:
        if worker is not None:
            worker.end()


def _described(name: str, verb: Verb[Any, Any, Any], access: FolderAccess) -> Any:
    from mcp import types

    writes = access.write is not None and any(p.kind == "out" for p in parameters_of(verb.asks).values())
    prose = [part for part in verb.help.split("\n\n") if not part.startswith("etude ")]
    return types.Tool(
        name=name,
        description="\n\n".join(prose),
        input_schema=schema(verb, access.write is not None),
        output_schema={"type": "object"},
        annotations=types.ToolAnnotations(read_only_hint=not writes, destructive_hint=False, open_world_hint=False),
    )


def call_tool(
    known: Mapping[str, Verb[Any, Any, Any]], name: str, given: Mapping[str, Any], access: FolderAccess
) -> tuple[bool, Any]:
    """(is it an error, the answer or what is wrong). Etude's own errors are returned with their hint; of any other a
    client gets the name of the tool alone."""
    if name not in known:
        return True, f"unknown tool `{name[:100]}`\nhint: known: {', '.join(known)}"
    try:
        return False, call(known[name], given, access)
    except EtudeError as problem:
        return True, _in_words_of_tools(str(problem), access)
    except MemoryError:
        return (
            True,
            "needs more memory than a call may have\nhint: ask for less, or start the server with more: --memory",
        )
    except OSError as problem:
        return True, f"cannot be read: {problem.strerror or type(problem).__name__}"
    except Exception:
        import logging

        logging.getLogger(__name__).exception("tool %r failed", name)
        return True, f"Error executing tool {name}"


def _in_words_of_tools(text: str, access: FolderAccess) -> str:
    """An error as a client reads it: parameters instead of flags, paths below the root."""
    named = re.sub(r"(?<![\w-])--(?!help)([a-z][a-z0-9-]*)", lambda found: f"`{found[1].replace('-', '_')}`", text)
    for folder in filter(None, (access.root, access.write)):
        named = named.replace(f"{folder}/", "")
    return named
