from typing import TYPE_CHECKING

from etude.base.talk import say
from etude.decide.validate.asked import Validate, validate_inputs, validate_rows, validate_words, validated
from etude.surface.cli.output import emit
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.decide.validate import Validated


def show(found: "Validated") -> None:
    emit(validate_rows(found))
    for words in validate_words(found):
        say(words)


VERBS = (Verb("validate", Validate, validate_inputs, validated, record=lambda found: found.record(), show=show),)
