"""Workflows: sessions of model calls, tools and environments, in the order of their program or of their data."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.workflow.pools import placed_on as placed_on
    from etude.world.serve.workflow.results import session_table as session_table
    from etude.world.serve.workflow.results import task_table as task_table
    from etude.world.serve.workflow.results import workflow_summary as workflow_summary
    from etude.world.serve.workflow.run import run_workflow as run_workflow
    from etude.world.serve.workflow.spec import Workflow as Workflow
    from etude.world.serve.workflow.spec import budget_of as budget_of
    from etude.world.serve.workflow.spec import open_workflow as open_workflow

__getattr__ = face(__name__)
