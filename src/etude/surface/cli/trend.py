from etude.steps.asked.trend import TrendOf, inputs, reads, run
from etude.surface.verb import Verb

VERBS = (Verb("trend", TrendOf, inputs, run, reads=reads, tool=True),)
