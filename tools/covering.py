"""Which tests run which lines of a room, and which kernels: a plugin of pytest that writes it down.

    ETUDE_COVERING=out.json ETUDE_ROOM=src/etude/world/serve python -m pytest -p covering tests/serve

Lines are those that Python ran; of compiled code the kernels that Python called are noted, with all kernels that these
call in turn. A test that fails is noted as such.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest

ROOT = Path.cwd()
ROOM = str(ROOT / os.environ.get("ETUDE_ROOM", "src"))
FOUND: dict[str, dict[str, Any]] = {}


class Recorder:
    """What one test runs."""

    def __init__(self) -> None:
        self.lines: dict[CodeType, set[int]] = {}
        self.wanted: dict[CodeType, int] = {}
        self.kernels: set[Any] = set()

    def call(self, frame: FrameType, event: str, value: Any) -> Any:
        """Of a trace function: whether the lines of this call are of interest."""
        code = frame.f_code
        if not code.co_filename.startswith(ROOM):
            return None
        seen = self.lines.get(code)
        if seen is None:
            seen = self.lines[code] = {frame.f_lineno}
            self.wanted[code] = len({line for *_, line in code.co_lines() if line is not None})
        return None if len(seen) >= self.wanted[code] else self.line

    def line(self, frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            self.lines[frame.f_code].add(frame.f_lineno)
        return self.line

    def record(self) -> dict[str, Any]:
        lines: dict[str, set[int]] = {}
        for code, numbers in self.lines.items():
            lines.setdefault(str(Path(code.co_filename).relative_to(ROOT)), set()).update(numbers)
        kernels: set[Any] = set()
        for one in self.kernels:
            _add_kernels(one, kernels)
        named = {f"{Path(f.__code__.co_filename).relative_to(ROOT)}:{f.__qualname__}" for f in kernels
                 if f.__code__.co_filename.startswith(ROOM)}  # fmt: skip
        return {"lines": {path: sorted(numbers) for path, numbers in lines.items()}, "kernels": sorted(named)}


def _add_kernels(function: Any, found: set[Any]) -> None:
    """The function of a kernel, and those of all kernels that it names."""
    if function in found:
        return
    found.add(function)
    names = set(function.__code__.co_names)
    for code in (c for c in function.__code__.co_consts if isinstance(c, CodeType)):
        names |= set(code.co_names)
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        inner = [vars(value)[one] for one in names & vars(value).keys()] if isinstance(value, ModuleType) else [value]
        for one in inner:
            if hasattr(one, "py_func"):
                _add_kernels(one.py_func, found)


RECORDER: list[Recorder] = []


def pytest_configure(config: pytest.Config) -> None:
    try:
        from etude.kernels.compile import Kernel
    except ModuleNotFoundError:
        return  # a package without kernels

    plain = Kernel.__call__

    def call(kernel: Any, *arguments: Any, **named: Any) -> Any:
        if RECORDER:
            RECORDER[-1].kernels.add(kernel.py_func)
        return plain(kernel, *arguments, **named)

    Kernel.__call__ = call  # type: ignore[method-assign]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Set-up too: what a fixture of a module runs is noted for the first test that needs it."""
    one = Recorder()
    RECORDER.append(one)
    begin = time.process_time()
    sys.settrace(one.call)
    try:
        return (yield)
    finally:
        sys.settrace(None)
        RECORDER.pop()
        FOUND.setdefault(item.nodeid, {"ok": True}).update(one.record(), seconds=time.process_time() - begin)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed or report.skipped:
        FOUND.setdefault(report.nodeid, {})["ok"] = False


def pytest_sessionfinish(session: pytest.Session) -> None:
    Path(os.environ["ETUDE_COVERING"]).write_text(json.dumps(FOUND), "utf-8")
