from etude.steps.asked.info import Info, reads, run
from etude.steps.asked.jobs import JobSource
from etude.surface.verb import Verb

VERBS = (Verb("info", Info, JobSource.of, run, reads=reads, tool=True),)
