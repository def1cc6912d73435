from etude.surface.verb import Verb
from etude.tell.report.asked.report import Report, inputs, record, run, show

VERBS = (Verb(name="report", asks=Report, inputs=inputs, run=run, record=record, show=show, tool=True),)
