from etude.steps.asked.collectives import Collectives, inputs
from etude.steps.asked.runs import Analysed
from etude.surface.verb import Verb

VERBS = (Verb(name="collectives", asks=Collectives, inputs=inputs, run=Analysed.run, tool=True),)
