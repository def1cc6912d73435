from etude.surface.verb import Verb
from etude.tell.report.asked.evaluate import Evaluate, inputs, run

VERBS = (Verb("evaluate", Evaluate, inputs, run, reads=lambda found: str(found["value"]), tool=True),)
