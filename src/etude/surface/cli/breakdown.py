from etude.steps.asked.breakdown import Breakdown, inputs
from etude.steps.asked.runs import Analysed, record_of, table_of
from etude.surface.verb import Verb

VERBS = (Verb("breakdown", Breakdown, inputs, Analysed.with_figures, record=record_of, table=table_of, tool=True),)
