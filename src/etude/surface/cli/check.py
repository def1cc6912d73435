from etude.steps.asked.check import Check, code, inputs, reads, run
from etude.surface.verb import Verb

VERBS = (Verb("check", Check, inputs, run, reads=reads, code=code, tool=True),)
