"""Code that Inductor generated for a program: where a recording stores it, whether it may run, and how it is run again.

`etude collect` stores whole graphs, each with a seal. PyTorch's own observer stores Triton kernels, one file each, in a
folder next to its own file (`set_extra_resource_collection(True)`); these have no seal.
"""

from __future__ import annotations

import glob
import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from etude.base.errors import FormatError, UsageError
from etude.base.seals import made_here

ENDING: Final = ".compiled.json.gz"
RESOURCES: Final = "_resources"
Graphs = dict[str, dict[str, str]]
"""For each compiled graph or kernel file, its `code` and the `seal` of the user who recorded it."""


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
    """Whether code that comes with a recording may run: only if this user recorded it on this machine, or if it is
    trusted."""
    return trusted or all(made_here(one["code"], one["seal"]) for one in graphs.values())


def check_code(about: Mapping[str, Any], *, trusted: bool) -> None:
    """Raises UsageError if a program has code that this user did not record here. Must be called before any of it
    runs."""
    if not may_run(about.get("compiled", {}), trusted=trusted):
        hint = "--trust-code runs it; without it, its graphs are replaced by stand-ins"
        raise UsageError("the program has compiled code that was not recorded on this machine by this user", hint=hint)


def compiled_call(source: str) -> Callable[[], Any]:
    """A function that runs a compiled graph. It makes its own arguments, of the shapes that the code was compiled
    for."""
    module: dict[str, Any] = {"__name__": "etude_compiled"}
    exec(compile(source, "<compiled graph>", "exec"), module)
    given, call = module["get_args"](), module["call"]
    return lambda: call(list(given))


def triton_call(source: str, kernel: str) -> Callable[..., None]:
    """A function that launches a kernel of a file that Inductor wrote, in the current stream. The kernel is compiled,
    and its block sizes are chosen, at the first call."""
    import torch

    if not torch.cuda.is_available():
        raise UsageError("Triton needs a CUDA device, and this machine has none")
    from torch._inductor.codecache import PyCodeCache

    run = getattr(PyCodeCache.load(source), kernel).run
    stream, device = torch._C._cuda_getCurrentRawStream, torch.cuda.current_device()
    return lambda *given: run(*given, stream=stream(device))
