"""A file of experts that are served as functions.

model: qwen1.5-moe.yaml   # a name of the catalogue, or a file, also relative to this one
system: dgx-a100
experts_per_function: 6   # of one layer
tenants: 8
every: 1h                 # between two requests of a tenant, on average (Poisson)
duration: 6h
prompt: 16                # tokens of a request, read in one pass; then a pass for each further token out
output: 16
cold: 500ms               # until a new instance answers
load: 2GB/s               # load rate of its weights, in addition; 0: at once
keep: 60s                 # how long an idle instance stays; `endless`: one of each is there from the start
invoke: 1ms               # overhead of a call for its sender; calls of a layer are sent one after another
instances: 0              # most instances of a function, then calls wait; 0: no limit
shared: true              # tenants use the same functions; else each tenant has its own
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Final

from etude.base.errors import UsageError
from etude.base.figures import figure, read, read_mapping, usage_errors
from etude.base.units import parse_time

ENDLESS: Final = "endless"
MOST: Final = 1_000_000
"""Largest number of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    model: str = figure("text", "model with experts: a name of the catalogue, or a file")
    system: str = figure("text", "system whose device runs them")
    experts_per_function: int = figure("count", "experts of one layer in a function")
    every_ns: int = figure("time", "mean time between two requests of a tenant")
    duration_ns: int = figure("time", "time in which requests arrive")
    tenants: int = figure("count", "tenants that send requests", 1)
    prompt: int = figure("count", "tokens of a request, in one pass", 16)
    output: int = figure("count", "output tokens, one pass each; the first comes from the prompt's pass", 16)
    cold_ns: int = figure("time", "time until a new instance answers", 500_000_000, zero=True)
    load_bytes_per_s: float = figure("bandwidth", "load rate of the weights of a new instance; 0: instant", 0.0)
    keep: str = figure("text", "time that an idle instance is kept; `endless`", "60s")
    invoke_ns: int = figure("time", "overhead of a call for its sender", 1_000_000, zero=True)
    instances: int = figure("count", "most instances of a function; 0: no limit", 0)
    shared: bool = figure("flag", "tenants use the same functions", True)

    @property
    def keep_ns(self) -> int | None:
        """Time that an idle instance is kept, ns; None: endless."""
        return None if self.keep == ENDLESS else int(parse_time(self.keep))


def read_functions(path: str | PathLike[str]) -> Functions:
    where = str(path)
    with usage_errors():
        spec = read(Functions, read_mapping(path), where)
    try:
        keep = spec.keep_ns or 0
    except UsageError:
        keep = -1
    if keep < 0:
        raise UsageError(f"keep: `{spec.keep}` is not a time", where=where, hint="keep: 60s, or endless")
    if spec.tenants * spec.duration_ns > MOST * spec.every_ns:
        raise UsageError(f"more than {MOST:,} requests", where=where, hint="use a shorter duration")
    beside = Path(path).parent / spec.model
    return replace(spec, model=str(beside)) if beside.is_file() else spec
