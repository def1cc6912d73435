"""Etude: everything around MLCommons Chakra execution traces.

`import etude` is light: each public name is loaded from its home when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from etude.errors import EtudeError as EtudeError
    from etude.errors import TraceError as TraceError
    from etude.model.feeder import feeder as feeder
    from etude.store.et_stream import open_feeder as open_feeder

__version__ = "0.1.0.dev0"

# public name -> the module it lives in (and, for type checkers, the same import above)
_HOME = {
    "EtudeError": "etude.errors",
    "TraceError": "etude.errors",
    "feeder": "etude.model.feeder",
    "open_feeder": "etude.store.et_stream",
}

__all__ = ["EtudeError", "TraceError", "__version__", "feeder", "open_feeder"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module `etude` has no attribute `{name}`")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
