from etude.surface.verb import Verb
from etude.tell.report.asked.evaluate import Evaluate, inputs, run

VERBS = (
    Verb(name="evaluate", asks=Evaluate, inputs=inputs, run=run, reads=lambda found: str(found["value"]), tool=True),
)
