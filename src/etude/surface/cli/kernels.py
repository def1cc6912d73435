from etude.steps.asked.kernels import Kernels, kernels_inputs
from etude.steps.asked.runs import Analysed
from etude.surface.verb import Verb

VERBS = (Verb(name="kernels", asks=Kernels, inputs=kernels_inputs, run=Analysed.run, tool=True),)
