from etude.base.talk import say
from etude.steps.asked.graph import GraphOf, inputs, run
from etude.surface.verb import Verb

VERBS = (Verb("graph", GraphOf, inputs, run, show=say),)
