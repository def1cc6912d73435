from etude.steps.asked.edit import Edit, answer, inputs, reads, record, run
from etude.surface.verb import Verb

VERBS = (Verb(name="edit", asks=Edit, inputs=inputs, run=run, record=record, reads=reads, tool=True, answer=answer),)
