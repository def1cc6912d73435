from etude.steps.asked.timeline import TimelineOf, inputs, run, show
from etude.surface.verb import Verb

VERBS = (Verb("timeline", TimelineOf, inputs, run, show=show),)
