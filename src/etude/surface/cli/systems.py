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
from etude.steps.asked.drawn_system import DrawSystem, draw_inputs, draw_system
from etude.surface.cli.output import print_yaml
from etude.surface.verb import Verb


def say_all(lines: list[str]) -> None:
    for line in lines:
        say(line)


VERBS = (
    Verb("systems", Systems, lambda asked: None, systems_listed),
    Verb("systems list", ListSystems, lambda asked: None, systems_listed),
    Verb("systems show", ShowSystem, lambda asked: asked.name, system_figures, show=print_yaml),
    Verb("systems check", CheckSystem, lambda asked: Path(asked.path), system_checked, show=say_all),
    Verb("systems draw", DrawSystem, draw_inputs, draw_system, show=say),
)
