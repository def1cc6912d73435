from etude.decide.search import asked_plan
from etude.surface.verb import Verb

VERBS = (
    Verb(
        name="plan", asks=asked_plan.PlanRequest, inputs=asked_plan.plan_inputs, run=asked_plan.run_plan,
        reads=asked_plan.readable, tool=True,
    ),
)  # fmt: skip
