from etude.steps.asked.kernels import Kernels, kernels_inputs
from etude.steps.asked.runs import Analysed
from etude.surface.verb import Verb

VERBS = (Verb("kernels", Kernels, kernels_inputs, Analysed.run, tool=True),)
