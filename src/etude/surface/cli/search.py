from functools import partial

from etude.decide.search import asked
from etude.surface.cli.executing import executed
from etude.surface.verb import Verb


def meant(args: list[str]) -> str:
    """A YAML file is a space, unless its plans are asked for: then it describes a model."""
    from etude.surface.cli.arguments import values
    from etude.surface.cli.build import command_of

    options = {arg.partition("=")[0] for arg in args}
    if not any(arg.endswith((".yaml", ".yml")) for arg in args) or options & {"--system", "-s", "--over"}:
        return ""
    first = next((args[at] for at, option in values(command_of(VERBS[0]).params, args) if not option), "")
    return "search space" if first.endswith((".yaml", ".yml")) else ""


run = partial(asked.run, execute=executed)
VERBS = (
    Verb(
        "search",
        asked.SearchPlans,
        asked.plan_inputs,
        run,
        record=asked.record,
        reads=asked.reads,
        tool=True,
        answer=asked.answer,
    ),
    Verb(
        "search deployment",
        asked.SearchDeployment,
        asked.deployment_inputs,
        run,
        record=asked.record,
        reads=asked.reads,
    ),
    Verb("search space", asked.SearchSpace, asked.space_inputs, run, record=asked.record, reads=asked.reads),
)
