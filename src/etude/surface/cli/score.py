from typing import TYPE_CHECKING

from etude.base.talk import say
from etude.decide.score.asked import Score, score_inputs, score_record, score_rows, score_words, scored
from etude.surface.cli.output import emit
from etude.surface.verb import Verb

if TYPE_CHECKING:
    from etude.decide.score import Scored


def show(found: "list[Scored]") -> None:
    emit(score_rows(found))
    for words in score_words(found):
        say(words)


VERBS = (Verb("score", Score, score_inputs, scored, record=score_record, show=show, tool=True),)
