from etude.steps.asked.check import Check, code, inputs, reads, run
from etude.surface.verb import Verb

VERBS = (Verb(name="check", asks=Check, inputs=inputs, run=run, reads=reads, code=code, tool=True),)
