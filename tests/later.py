"""Packages that tests need and that take seconds to import: imported when a test first uses them.

Every process of a run collects all tests; without this each of them would import PyTorch, Ray and others for the tests
of another. A search by several processes also forks them, as a user's does, only where PyTorch is not loaded.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

TORCH = "needs PyTorch: make test TORCH=1"


ASKED_OF_ALL = ("_mock_name", "__wrapped__", "__test__", "__bases__")
"""What pytest looks for in every value of a file of tests."""


class Later:
    """Stands for a module until something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name in ASKED_OF_ALL:
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def later(name: str, reason: str = "") -> Any:
    """The module; the tests of a file that calls this are skipped where it is not installed."""
    if find_spec(name) is None:
        pytest.skip(reason or f"needs {name}", allow_module_level=True)
    return Later(name)
