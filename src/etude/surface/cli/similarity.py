from typing import Any

from etude.steps.asked.similarity import Similarity, figure_shown, similarity_inputs, similarity_of
from etude.surface.cli.output import shortened
from etude.surface.verb import Verb


def read(found: Any) -> Any:
    """A table of kernels with long names cut; of figures, with formatted values."""
    return shortened(found) if hasattr(found, "schema") else [figure_shown(row) for row in found]


VERBS = (Verb("similarity", Similarity, similarity_inputs, similarity_of, reads=read, tool=True),)
