from etude.decide.search import asked_plan
from etude.surface.verb import Verb

VERBS = (
    Verb(
        "plan",
        asked_plan.PlanRequest,
        asked_plan.plan_inputs,
        asked_plan.run_plan,
        reads=asked_plan.readable,
        tool=True,
    ),
)
