from typing import Any

from etude.steps.asked import learning
from etude.surface.cli.output import emit
from etude.surface.verb import Verb


def show(found: dict[str, Any]) -> None:
    figures, became = learning.readable(found)
    emit(figures)
    print()
    emit(became)
    if found["copies"]:
        print()
        emit(learning.copies(found))


VERBS = (Verb("learn", learning.Learn, learning.learn_inputs, learning.run_learn, show=show),)
