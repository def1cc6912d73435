from etude.base.talk import say
from etude.steps.asked.graph import GraphOf, inputs, run
from etude.surface.verb import Verb

VERBS = (Verb(name="graph", asks=GraphOf, inputs=inputs, run=run, show=say),)
