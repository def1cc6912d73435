from etude.steps.asked.roofline import Roofline, roofline_inputs
from etude.steps.asked.runs import Analysed
from etude.surface.verb import Verb

VERBS = (Verb(name="roofline", asks=Roofline, inputs=roofline_inputs, run=Analysed.run, tool=True),)
