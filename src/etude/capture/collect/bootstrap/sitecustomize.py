"""Python runs this at start, because the launcher put its folder on PYTHONPATH. It must not affect the program.

First it runs the `sitecustomize` that would have been found without it; then it waits for `import torch`.
"""

import contextlib
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


def _step_aside() -> None:
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


class _AfterTorch:
    """Finds `torch` as usual, and calls `_activate` after it has been imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_activate(module: ModuleType) -> None:
            run(module)
            with contextlib.suppress(Exception):
                _activate()

        spec.loader.exec_module = run_and_activate  # type: ignore[method-assign]
        return spec


def _activate() -> None:
    parent = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
    borrowed = find_spec("etude") is None
    if borrowed:  # an environment other than the launcher's: ours is used for this one import
        sys.path.append(parent)
    try:
        from etude.capture.collect.inject import activate
    finally:
        if borrowed:
            sys.path.remove(parent)
    activate(os.environ["ETUDE_COLLECT"])


_wanted = "ETUDE_COLLECT" in os.environ
try:
    _step_aside()
finally:
    if _wanted:
        sys.meta_path.insert(0, _AfterTorch())  # type: ignore[arg-type]
