"""Words of the command line become values without Pydantic, where both would give the same.

Newer versions of Typer have Pydantic read every option, and loading it takes a good part of a small command. Here
texts, paths, whole numbers and words out of a list are read as Pydantic would read them; all else, and all that is
wrong, is left to it, so that what is said of a mistake is the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

import typer.core

_LEFT: Final = object()
"""What is read otherwise."""

_WHOLE = re.compile(r"-?[0-9]{1,15}", re.ASCII)


def install() -> None:
    """From here on; nothing where Typer reads values in another way."""
    core: Any = typer.core
    build: Any = getattr(core, "build_runtime_param", None)
    if build is None or getattr(build, "of_etude", False):
        return
    try:
        from typer._coercion import RuntimeParam
        from typer._param_types import coerce_cli_choice, coerce_cli_path  # noqa: F401
    except ImportError:
        return

    @dataclass(frozen=True)
    class Plain(RuntimeParam):
        descriptor: Any

        def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
            try:
                found = _read(value, self.annotation, self.parameter_info, param, ctx)
            except Exception:  # said in Pydantic's words below
                found = _LEFT
            return build(self.descriptor)._coerce_value(value, param, ctx) if found is _LEFT else found

    def build_plain(descriptor: Any) -> Any:
        if descriptor.file_annotation is not None:
            return build(descriptor)
        return Plain(parameter_info=descriptor.parameter_info, annotation=descriptor.annotation, descriptor=descriptor)

    build_plain.of_etude = True  # type: ignore[attr-defined]
    core.build_runtime_param = build_plain


def _read(value: Any, kind: Any, info: Any, param: Any, ctx: Any) -> Any:
    from typer._param_types import coerce_cli_choice, coerce_cli_path

    if info.parser is not None:
        return _LEFT
    if get_origin(kind) is list and isinstance(value, list | tuple):
        found = [_read(one, get_args(kind)[0], info, param, ctx) for one in value]
        return _LEFT if any(one is _LEFT for one in found) else found
    if kind is str:
        return value if type(value) is str else _LEFT
    if kind in (int, float):
        return _number(value, kind, info)
    choices: Any = list(kind) if isinstance(kind, type) and issubclass(kind, Enum) else get_args(kind)
    if choices and (get_origin(kind) is Literal or isinstance(kind, type)):
        return coerce_cli_choice(value, choices=choices, case_sensitive=info.case_sensitive, ctx=ctx)
    if kind is Path and type(value) is str and "\0" not in value and info.path_type is None:
        return coerce_cli_path(Path(value), info, path_type=Path, param=param, ctx=ctx)
    return _LEFT


def _number(value: Any, kind: type, info: Any) -> Any:
    if kind is int and type(value) is str and _WHOLE.fullmatch(value):
        value = int(value)
    if type(value) is not kind or info.clamp:
        return _LEFT
    inside = (info.min is None or value >= info.min) and (info.max is None or value <= info.max)
    return value if inside else _LEFT
