from etude.steps.asked.stacks import ListStacks, ShowStack, Stacks, listed, shown
from etude.surface.cli.output import emit, print_yaml
from etude.surface.verb import Verb

VERBS = (
    Verb(name="stacks", asks=Stacks, inputs=lambda asked: None, run=listed, show=emit),
    Verb(name="stacks list", asks=ListStacks, inputs=lambda asked: None, run=listed, show=emit),
    Verb(name="stacks show", asks=ShowStack, inputs=lambda asked: asked.name, run=shown, show=print_yaml),
)
