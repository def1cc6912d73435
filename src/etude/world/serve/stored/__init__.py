"""Served streams as folders for other commands, and windows of them as jobs."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.stored.compare import compared as compared
    from etude.world.serve.stored.folder import read_served as read_served
    from etude.world.serve.stored.folder import write_served as write_served
    from etude.world.serve.stored.folder import write_workflow as write_workflow
    from etude.world.serve.stored.window import job_of_window as job_of_window
    from etude.world.serve.stored.window import node_level_ns as node_level_ns
    from etude.world.serve.stored.window import parse_window as parse_window
    from etude.world.serve.stored.window import passes_in as passes_in

__getattr__ = face(__name__)
