from etude.steps.asked.timeline import TimelineOf, inputs, run, show
from etude.surface.verb import Verb

VERBS = (Verb(name="timeline", asks=TimelineOf, inputs=inputs, run=run, show=show),)
