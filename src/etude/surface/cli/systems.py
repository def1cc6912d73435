from pathlib import Path

from etude.base.talk import say
from etude.machine.asked import (
    CheckSystem,
    ListSystems,
    ShowSystem,
    Systems,
    system_checked,
    system_figures,
    systems_listed,
)
from etude.surface.cli.output import print_yaml
from etude.surface.verb import Verb


def say_all(lines: list[str]) -> None:
    for line in lines:
        say(line)


VERBS = (
    Verb(name="systems", asks=Systems, inputs=lambda asked: None, run=systems_listed),
    Verb(name="systems list", asks=ListSystems, inputs=lambda asked: None, run=systems_listed),
    Verb(name="systems show", asks=ShowSystem, inputs=lambda asked: asked.name, run=system_figures, show=print_yaml),
    Verb(
        name="systems check", asks=CheckSystem, inputs=lambda asked: Path(asked.path), run=system_checked, show=say_all
    ),
)
