from etude.surface.verb import Verb
from etude.tell.report.asked.report import Report, inputs, record, run, show

VERBS = (Verb("report", Report, inputs, run, record=record, show=show, tool=True),)
