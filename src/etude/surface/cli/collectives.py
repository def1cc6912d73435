from etude.steps.asked.collectives import CollectivesOf, inputs
from etude.steps.asked.runs import Analysed
from etude.surface.verb import Verb

VERBS = (Verb("collectives", CollectivesOf, inputs, Analysed.run, tool=True),)
