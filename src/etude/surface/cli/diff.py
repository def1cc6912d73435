from etude.steps.asked.diff import Diff, code, inputs, reads, run
from etude.surface.verb import Verb

VERBS = (Verb("diff", Diff, inputs, run, reads=reads, code=code, tool=True),)
