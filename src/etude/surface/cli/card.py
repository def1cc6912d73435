from etude.steps.asked.card import ShowCard, inputs, reads, record, run
from etude.surface.verb import Verb

VERBS = (Verb("card", ShowCard, inputs, run, record=record, reads=reads),)
