from etude.steps.asked.info import Info, reads, run
from etude.steps.asked.jobs import JobSource
from etude.surface.verb import Verb

VERBS = (Verb(name="info", asks=Info, inputs=JobSource.of, run=run, reads=reads, tool=True),)
