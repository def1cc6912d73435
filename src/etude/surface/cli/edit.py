from etude.steps.asked.edit import EditJob, answer, inputs, reads, record, run
from etude.surface.verb import Verb

VERBS = (Verb("edit", EditJob, inputs, run, record=record, reads=reads, tool=True, answer=answer),)
