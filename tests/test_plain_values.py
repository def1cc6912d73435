"""Words of the command line that are read without Pydantic become what Pydantic makes of them."""

import enum
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest
import typer

from etude.surface.cli import plain_values


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


CASES = [
    (str, {}, ["a", "", " x ", "7"]),
    (int, {}, ["7", "-3", "+4", "007", "1_0", " 5", "x", "2.0", "", "9" * 30, "٣"]),
    (int, {"min": 0, "max": 9}, ["0", "9", "10", "-1"]),
    (int, {"max": 9, "clamp": True}, ["12"]),
    (float, {"min": 0.0}, ["1.5", "2", "-1", "nan", "x"]),
    (bool, {}, ["true", "off", "x"]),
    (Path, {}, ["a/b", ".", "a//b", ""]),
    (Path, {"exists": True}, ["/", "/nothing/here"]),
    (Path, {"dir_okay": False}, ["/"]),
    (Colour, {}, ["red", "RED", "green"]),
    (Colour, {"case_sensitive": False}, ["RED"]),
    (Literal["one", "two"], {}, ["one", "three"]),
    (list[str], {}, ["a"]),
    (list[int], {"min": 1}, ["1", "0"]),
    (list[Path], {}, ["a"]),
]


def outcome(build, annotation, options, word):
    """What a value becomes, with its type, or what is said of it."""
    from typer._coercion import resolve_type_descriptor
    from typer.models import OptionInfo

    info = OptionInfo(default=None, param_decls=("--x",), **options)
    given = [word] if str(annotation).startswith("list") else word
    descriptor = resolve_type_descriptor(annotation, info)
    param = typer.core.TyperOption(param_decls=["--x"], type_descriptor=descriptor)
    try:
        found = build(descriptor)._coerce_value(given, param, typer.Context(typer.core.TyperCommand("c")))
    except typer.BadParameter as problem:
        return "refused", problem.format_message()
    return type(found), found


@pytest.mark.parametrize(("annotation", "options", "words"), CASES)
def test_the_same_value_or_the_same_words(annotation, options, words):
    coercion = pytest.importorskip("typer._coercion")
    plain_values.install()
    assert typer.core.build_runtime_param is not coercion.build_runtime_param
    for word in words:
        plain = outcome(typer.core.build_runtime_param, annotation, options, word)
        assert plain == outcome(coercion.build_runtime_param, annotation, options, word), word


def test_a_command_does_not_load_pydantic():
    script = "import sys; from etude.surface.cli import main; main(['info', '/none']); print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
