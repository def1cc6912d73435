from typing import Any

from etude.surface.verb import Verb
from etude.tell.studio.asked.studio import Studio, inputs, run


def _nothing(found: Any) -> None:
    """The server has said all."""


VERBS = (Verb("studio", Studio, inputs, run, show=_nothing),)
