from etude.steps.asked.edit import EditJob, answer, inputs, reads, record, run
from etude.surface.verb import Verb

VERBS = (Verb(name="edit", asks=EditJob, inputs=inputs, run=run, record=record, reads=reads, tool=True, answer=answer),)
