"""Code that Inductor made of a program: where a recording has it, whether it may run, and how it is run again.

Whole graphs are kept by `etude collect`, each with a seal. Kernels of Triton, a file each, are kept by PyTorch's own
observer in a folder beside its file (`set_extra_resource_collection(True)`); they are not sealed.
"""

from __future__ import annotations

import glob
import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from etude.errors import FormatError, UsageError
from etude.seals import made_here

ENDING: Final = ".compiled.json.gz"
RESOURCES: Final = "_resources"
Graphs = dict[str, dict[str, str]]
"""For each compiled graph, or kernel file, its `code`, and the `seal` of the user who recorded it."""


def compiled_sources(path: Path) -> Graphs:
    """The code of each compiled graph and kernel stored with a recording; empty if there is none."""
    folder, stem = (path, "") if path.is_dir() else (path.parent, path.name)
    found: Graphs = {}
    for file in sorted(folder.glob(f"*{ENDING}")) if folder.is_dir() else ():
        if not file.name.startswith(stem):
            continue
        try:
            told = json.loads(gzip.decompress(file.read_bytes()))
            found |= {str(key): {"code": str(one["code"]), "seal": str(one["seal"])} for key, one in told.items()}
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as problem:
            raise FormatError(f"is not the code of compiled graphs: {problem}", path=file) from None
    for file in sorted(folder.glob(f"{glob.escape(stem)}*{RESOURCES}/*.py")) if folder.is_dir() else ():
        found[file.name] = {"code": file.read_text("utf-8", "replace"), "seal": ""}
    return found


def may_run(graphs: Mapping[str, Mapping[str, str]], *, trusted: bool) -> bool:
    """Code that comes with a recording runs where this user recorded it, on this machine, or is said to be trusted."""
    return trusted or all(made_here(one["code"], one["seal"]) for one in graphs.values())


def check_code(about: Mapping[str, Any], *, trusted: bool) -> None:
    """Refuses a program with code of somebody else's, before any of it runs."""
    if not may_run(about.get("compiled", {}), trusted=trusted):
        raise UsageError(
            "the program has compiled code that was not recorded on this machine by this user",
            hint="--trust-code runs it; without it, its graphs are replaced by stand-ins",
        )


def compiled_call(source: str) -> Callable[[], Any]:
    """What runs the code on arguments of the shapes that it was made for, which it makes itself."""
    module: dict[str, Any] = {"__name__": "etude_compiled"}
    exec(compile(source, "<compiled graph>", "exec"), module)
    given, call = module["get_args"](), module["call"]
    return lambda: call(list(given))


def triton_call(source: str, kernel: str) -> Callable[..., None]:
    """What launches a kernel of a file that Inductor wrote, in the current stream. It is compiled, and its block sizes
    are chosen, when it is first called."""
    import torch

    if not torch.cuda.is_available():
        raise UsageError("Triton needs a CUDA device, and this machine has none")
    from torch._inductor.codecache import PyCodeCache

    run = getattr(PyCodeCache.load(source), kernel).run
    stream, device = torch._C._cuda_getCurrentRawStream, torch.cuda.current_device()
    return lambda *given: run(*given, stream=stream(device))
