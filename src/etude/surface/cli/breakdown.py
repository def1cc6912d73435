from etude.steps.asked.breakdown import Breakdown, inputs
from etude.steps.asked.runs import Analysed
from etude.surface.verb import Verb

VERBS = (Verb(name="breakdown", asks=Breakdown, inputs=inputs, run=Analysed.run, tool=True),)
