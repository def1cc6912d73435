from etude.steps.asked.idle import Idle, inputs
from etude.steps.asked.runs import Analysed
from etude.surface.verb import Verb

VERBS = (Verb(name="idle", asks=Idle, inputs=inputs, run=Analysed.run, tool=True),)
