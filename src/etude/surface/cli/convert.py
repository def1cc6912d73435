from etude.steps.asked.convert import Convert, inputs, run, show
from etude.surface.verb import Verb

VERBS = (Verb("convert", Convert, inputs, run, show=show),)
