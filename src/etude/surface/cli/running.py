"""Runs an app as a good citizen of the shell: errors are two lines and an exit code, and it dies politely."""

import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import typer

from etude.base.errors import EtudeError
from etude.base.talk import heard
from etude.kernels.first_use import compiling, told_of_compiling
from etude.surface.cli.output import bar, on_stderr

INTERRUPTED = 130  # what a shell reports for death by SIGINT
BROKEN_PIPE = 141  # and by SIGPIPE


@dataclass
class Settings:
    """What the options before the command say."""

    debug: bool = False


def run(app: typer.Typer, argv: Sequence[str] | None = None) -> int:
    """Runs the command that `argv` names. A command returns nothing, or its exit code."""
    code = _run(app, argv)
    if compiling():  # cut off meanwhile: LLVM cannot be stopped, and Python would wait for it
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    return code


LONG_S = 5.0
"""Compiling that is worth another word."""


class FirstUse:
    """Says that kernels are being compiled: once, and again before one that takes long. For people, not for logs."""

    told = False

    def __call__(self, name: str, seconds: float) -> None:
        if sys.stderr.isatty() and (not self.told or seconds >= LONG_S):
            self.told = True
            print(f"compiling {name} for its first use, up to {max(seconds, 1):.0f} s", file=sys.stderr)


@cache
def _command_of(app: typer.Typer) -> Any:
    """The command of an app. It is cached, since studies and tests run many commands in one process."""
    return typer.main.get_command(app)


def _run(app: typer.Typer, argv: Sequence[str] | None) -> int:
    settings = Settings()
    streams = sys.stdout, sys.stderr
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names in traces may be any bytes
    try:
        with termination_unwinds(), told_of_compiling(FirstUse()), heard(on_stderr, bar):
            command = _command_of(app)
            try:
                result = command.main(argv, prog_name="etude", standalone_mode=False, obj=settings)
                sys.stdout.flush()
            finally:
                sys.stdout, sys.stderr = streams  # Typer wraps them when a pipe breaks
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # Typer turns that into exit code 1, which is ours for "no"
            return _hang_up()
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2
    except BrokenPipeError:
        return _hang_up()
    except Exception as problem:
        if settings.debug:
            traceback.print_exc()
        text, code = _say(problem)
        print(f"error: {text}", file=sys.stderr)
        return code


def _say(problem: Exception) -> tuple[str, int]:
    """The text to print after `error: `, and the exit code."""
    if isinstance(problem, EtudeError):
        return str(problem), problem.exit_code
    # Typer's usage errors come from whichever Click it carries, so they are known by their method.
    if hasattr(problem, "format_message"):
        context = getattr(problem, "ctx", None)
        hint = f"\nhint: {context.command_path} --help" if context is not None else ""
        return problem.format_message().replace(": Value error, ", ": ", 1) + hint, 2
    if isinstance(problem, OSError) and problem.strerror:
        return f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror, 2
    if isinstance(problem, typer.Abort):
        return "aborted", INTERRUPTED
    if isinstance(problem, MemoryError):
        return "out of memory", 2
    text = f"{type(problem).__name__}: {problem}".rstrip(": ")
    return f"{text}\nhint: this is a bug in etude; ETUDE_DEBUG=1 shows where it happened", 2


def _hang_up() -> int:
    """Handles a closed pipe: prints nothing, and keeps the interpreter from flushing into it at exit. Returns the exit
    code."""
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    return BROKEN_PIPE


@contextmanager
def termination_unwinds() -> Iterator[None]:
    """Makes SIGTERM and a closed terminal end the command like Ctrl-C, so that half-written files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    ours = [number for number in numbers if signal.getsignal(number) == signal.SIG_DFL]  # nohup's choice stays
    for number in ours:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, _: object) -> None:
    raise SystemExit(128 + number)
