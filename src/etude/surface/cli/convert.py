from etude.steps.asked.convert import Convert, inputs, run, show
from etude.surface.verb import Verb

VERBS = (Verb(name="convert", asks=Convert, inputs=inputs, run=run, show=show),)
