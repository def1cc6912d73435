from etude.steps.asked.timeline import Timeline, inputs, run, show
from etude.surface.verb import Verb

VERBS = (Verb(name="timeline", asks=Timeline, inputs=inputs, run=run, show=show),)
