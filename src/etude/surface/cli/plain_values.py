"""Words of the command line stay texts without Pydantic.

Newer versions of Typer have Pydantic read every option, and loading it takes a good part of a small command. Values of
verbs are texts here, and are read by `base/figures.py`; all else is left to Typer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, get_args, get_origin

import typer.core

_LEFT: Final = object()
"""What is read otherwise."""


def install() -> None:
    """From here on; nothing where Typer reads values in another way."""
    core: Any = typer.core
    build: Any = getattr(core, "build_runtime_param", None)
    if build is None or getattr(build, "of_etude", False):
        return
    try:
        from typer._coercion import RuntimeParam
    except ImportError:
        return

    @dataclass(frozen=True)
    class Plain(RuntimeParam):
        descriptor: Any

        def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
            found = _read(value, self.annotation, self.parameter_info)
            return build(self.descriptor)._coerce_value(value, param, ctx) if found is _LEFT else found

    def build_plain(descriptor: Any) -> Any:
        if descriptor.file_annotation is not None:
            return build(descriptor)
        return Plain(parameter_info=descriptor.parameter_info, annotation=descriptor.annotation, descriptor=descriptor)

    build_plain.of_etude = True  # type: ignore[attr-defined]
    core.build_runtime_param = build_plain


def _read(value: Any, kind: Any, info: Any) -> Any:
    if info.parser is not None:
        return _LEFT
    if get_origin(kind) is list and isinstance(value, list | tuple):
        found = [_read(one, get_args(kind)[0], info) for one in value]
        return _LEFT if any(one is _LEFT for one in found) else found
    return value if kind is str and type(value) is str else _LEFT
