from etude.steps.asked.roofline import Roofline, roofline_inputs
from etude.steps.asked.runs import Analysed
from etude.surface.verb import Verb

VERBS = (Verb("roofline", Roofline, roofline_inputs, Analysed.run, tool=True),)
