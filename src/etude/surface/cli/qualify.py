from typing import TYPE_CHECKING

from etude.steps.asked.qualify import (
    Qualify,
    QualifyInputs,
    figures_of,
    qualified,
    qualify_code,
    qualify_inputs,
    qualify_record,
)
from etude.surface.cli.output import emit
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.run.qualify import Qualified, QualifiedNode


def show(result: "tuple[QualifiedNode, Qualified, QualifyInputs]") -> None:
    node, found, given = result
    emit(found.ranking if given.others else figures_of(node))
    if found.findings:
        emit(found.findings)


VERBS = (Verb("qualify", Qualify, qualify_inputs, qualified, record=qualify_record, show=show, code=qualify_code),)
