"""The code that Inductor generated: profilers record when it ran, not what it did."""

import gc
import re
import sys
from typing import Any

from etude.base.seals import seal

_WHERE_FROM = re.compile(r"^\s*# (?:File:|Source|Topologically|Unsorted|Original).*\n", re.MULTILINE)
"""Comments that quote the program and name its files."""


def sources() -> dict[str, dict[str, str]]:
    """Name of each compiled graph, as the profiler writes it -> its code, sealed. Empty if there are none."""
    module = sys.modules.get("torch._inductor.output_code")
    kind: Any = getattr(module, "CompiledFxGraph", None)
    if kind is None:
        return {}
    graphs = [found for found in gc.get_objects() if type(found) is kind]
    told = ((getattr(graph, "_fx_graph_cache_key", None), getattr(graph, "source_code", None)) for graph in graphs)
    codes = {key: _WHERE_FROM.sub("", code) for key, code in told if key and code}
    return {key: {"code": code, "seal": seal(code)} for key, code in codes.items()}
