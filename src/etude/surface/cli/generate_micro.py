from etude.steps.asked import generating
from etude.steps.asked.job_out import made_figures, made_record
from etude.surface.verb import Verb

VERBS = (
    Verb(
        "generate micro",
        generating.GenerateMicro,
        generating.micro_inputs,
        generating.run_micro,
        record=made_record,
        reads=made_figures,
    ),
)
