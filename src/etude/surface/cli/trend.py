from etude.steps.asked.trend import TrendOf, inputs, reads, run
from etude.surface.verb import Verb

VERBS = (Verb(name="trend", asks=TrendOf, inputs=inputs, run=run, reads=reads, tool=True),)
