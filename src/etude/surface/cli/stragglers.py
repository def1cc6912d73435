from typing import Any

from etude.steps.asked.stragglers import Stragglers, stragglers_inputs, stragglers_record, stragglers_table
from etude.surface.cli.output import emit
from etude.surface.verb import Verb


def show(found: Any) -> None:
    if not isinstance(found, dict) or len(found["findings"]):
        emit(stragglers_table(found))


VERBS = (
    Verb(
        "stragglers",
        Stragglers,
        stragglers_inputs,
        lambda given: given.run(),
        record=stragglers_record,
        table=stragglers_table,
        show=show,
        tool=True,
    ),
)
