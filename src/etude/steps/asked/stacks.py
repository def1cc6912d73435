"""The catalogue of software stacks: what the verbs of `etude stacks` ask for."""

from dataclasses import dataclass
from typing import Any

from etude.base.outputs import Catalogued, entry_name


@dataclass(frozen=True, kw_only=True)
class Stacks(Catalogued):
    """The catalogue of software stacks: list, show one

    etude stacks
    etude stacks show nemo
    """


@dataclass(frozen=True, kw_only=True)
class ListStacks(Catalogued):
    """The stacks of the catalogue, and what each was fitted on

    etude stacks list
    """


@dataclass(frozen=True, kw_only=True)
class ShowStack(Catalogued):
    """Every figure of one stack, and its recipe, as YAML that can be changed and used

    etude stacks show nemo
    """

    name: str = entry_name("eager")


def listed(_: None) -> list[dict[str, Any]]:
    from etude.cost.stacks import open_stack, stack_names

    found = [open_stack(name) for name in stack_names()]
    return [
        {"stack": s.name, "description": s.doc, "also called": ", ".join(s.names), "fitted on": ", ".join(s.efficiency)}
        for s in found
    ]


def shown(name: str) -> dict[str, Any]:
    from etude.cost.stacks import open_stack

    return dict(open_stack(name).to_dict())
