from etude.steps.asked.stacks import ListStacks, ShowStack, Stacks, listed, shown
from etude.surface.cli.output import emit, print_yaml
from etude.surface.verb import Verb

VERBS = (
    Verb("stacks", Stacks, lambda asked: None, listed, show=emit),
    Verb("stacks list", ListStacks, lambda asked: None, listed, show=emit),
    Verb("stacks show", ShowStack, lambda asked: asked.name, shown, show=print_yaml),
)
