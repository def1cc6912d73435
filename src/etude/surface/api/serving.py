"""Streams of requests on replicas of a model."""

from __future__ import annotations

from dataclasses import fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from etude.base.parameters import PYTHON
from etude.surface.api.given import built
from etude.world.serve import Engine
from etude.world.serve.asked import text

if TYPE_CHECKING:
    from etude.make.generate.model import Model
    from etude.world.serve import Served

NAMES: Final = {"rate_per_s": "rate", "cv": "burst", "like": "lengths"}
"""Names of parameters in Python that are others on the command line."""
_SPELLED: Final = {there: here for here, there in NAMES.items()}
SPELLING: Final = replace(PYTHON, name=lambda name: f"`{_SPELLED.get(name, name)}`")


def serve(
    model: str | PathLike[str] | Model, system: str = "", requests: str | PathLike[str] | None = None, *,
    rate_per_s: float = 0.0, engine: Engine | None = None, seed: int = 0, keep_passes: bool = False, **options: Any,
) -> Served:  # fmt: skip
    """A stream of requests, of a file or drawn at a rate, on replicas of a model: every request and its times. Options
    are those of `etude serve`: of the stream, the replicas, the engine and what is between replicas. One that this
    stream does not read is refused.

    etude.serve("llama3-8b", "dgx-h100", rate_per_s=4, count=100, prompt=512, output=64, replicas=2)
    """
    given = engine_given(engine) | {NAMES.get(name, name): value for name, value in options.items()}
    own = {"model": model, "system": system, "requests": requests, "seed": seed}
    given |= {name: value for name, value in own.items() if value or not isinstance(value, str | int | None)}
    if rate_per_s:
        given["rate"] = str(float(rate_per_s))
    serving, _ = built(text.TextInput, text.text_serving, given, "serve", SPELLING)
    found: Served = replace(serving, keep_passes=keep_passes).run().points[0][1]
    return found


def engine_given(engine: Engine | None) -> dict[str, Any]:
    """What an engine says that is not as usual, by name."""
    usual, said = Engine(), engine or Engine()
    return {f.name: getattr(said, f.name) for f in fields(said) if getattr(said, f.name) != getattr(usual, f.name)}
