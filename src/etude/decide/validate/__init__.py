"""Validate: is the graph of a program right about what causes what?

places      where delays are put
graphs      what a graph predicts of a delay
pairs       blocks of steps, with a delay and without, and what they differ by
scoring     measured and predicted changes, and the score
measuring   record, and run again with delays
validating  what was measured against what the graph predicts
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.decide.validate.graphs import DelayedGraph as DelayedGraph
    from etude.decide.validate.measuring import ValidateOptions as ValidateOptions
    from etude.decide.validate.places import Place as Place
    from etude.decide.validate.scoring import Validated as Validated
    from etude.decide.validate.validating import predicted_again as predicted_again
    from etude.decide.validate.validating import validate as validate

__getattr__ = face(__name__)
