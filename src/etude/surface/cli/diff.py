from etude.steps.asked.diff import Diff, code, inputs, reads, run
from etude.surface.verb import Verb

VERBS = (Verb(name="diff", asks=Diff, inputs=inputs, run=run, reads=reads, code=code, tool=True),)
