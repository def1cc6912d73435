from etude.steps.asked.card import ShowCard, inputs, reads, record, run
from etude.surface.verb import Verb

VERBS = (Verb(name="card", asks=ShowCard, inputs=inputs, run=run, record=record, reads=reads),)
