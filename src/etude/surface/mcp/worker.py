"""Calls of tools in a process of their own, bounded in time and memory. A call that goes beyond is ended with its
process, and the next one has a new process.
"""

from __future__ import annotations

import json
import selectors
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from etude.base.units import format_bytes, format_time
from etude.surface.mcp.access import FolderAccess

STARTING_S: Final = 60.0
"""What a new process may take before its first call."""


class ToolProcess:
    """The process that answers calls, one at a time."""

    def __init__(self, access: FolderAccess, limit_ns: int, memory_bytes: int) -> None:
        self._access, self._limit_ns, self._memory_bytes = access, limit_ns, memory_bytes
        self._process = self._start()

    def answer(self, name: str, given: Mapping[str, Any]) -> tuple[bool, Any]:
        """(is it an error, the answer or what is wrong)."""
        if self._process.poll() is not None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([name, dict(given)]).encode() + b"\n")
            process.stdin.flush()
            line = self._line(self._limit_ns / 1e9)
        except BrokenPipeError:
            line = b""
        if line:
            is_error, found = json.loads(line)
            return is_error, found
        self.end()
        return (
            True,
            f"`{name}` ended its process\nhint: it may need more memory than {format_bytes(self._memory_bytes)}",
        )

    def _line(self, limit_s: float) -> bytes:
        """What the process says; nothing where it ended. Raises where it takes too long."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            if ready.select(limit_s):
                return self._process.stdout.readline()
        self.end()
        said = f"takes longer than {format_time(self._limit_ns)}, and was ended"
        return json.dumps([True, f"{said}\nhint: ask for less, or give the server a longer --limit"]).encode()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        folders = [str(folder) for folder in (self._access.root, self._access.write) if folder is not None]
        command = [sys.executable, "-m", "etude.surface.cli.answering", str(self._memory_bytes), *folders]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            if ready.select(STARTING_S):
                process.stdout.readline()
        return process
