from etude.base.talk import say
from etude.steps.asked.graph import Graph, inputs, run
from etude.surface.verb import Verb

VERBS = (Verb(name="graph", asks=Graph, inputs=inputs, run=run, show=say),)
