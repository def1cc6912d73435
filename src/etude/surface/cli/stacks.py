from typing import Annotated

import typer

from etude.surface.cli.app import RUN, app
from etude.surface.cli.groups import Group
from etude.surface.cli.output import AsJson, emit

stacks = typer.Typer(cls=Group, help="The catalogue of software stacks: list, show one")
app.add_typer(stacks, name="stacks", rich_help_panel=RUN)


@stacks.callback(invoke_without_command=True)
def all_stacks(context: typer.Context, json: AsJson = False) -> None:
    """The catalogue of software stacks: list, show one"""
    if context.invoked_subcommand is None:
        list_stacks(json)


@stacks.command("list")
def list_stacks(json: AsJson = False) -> None:
    """The stacks of the catalogue, and what each was fitted on"""
    from etude.cost.stacks import open_stack, stack_names

    found = [open_stack(name) for name in stack_names()]
    emit(
        [
            {
                "stack": s.name,
                "description": s.doc,
                "also called": ", ".join(s.names),
                "fitted on": ", ".join(s.efficiency),
            }
            for s in found
        ],
        json=json,
    )


@stacks.command()
def show(
    name: Annotated[str, typer.Argument(help="Name in the catalogue, or a file.")],
    json: AsJson = False,
) -> None:
    """Every figure of one stack, and its recipe, as YAML that can be changed and used"""
    import yaml

    from etude.cost.stacks import open_stack

    found = open_stack(name).to_dict()
    if json:
        emit(found, json=True)
    else:
        print(yaml.safe_dump(found, sort_keys=False, allow_unicode=True), end="")
