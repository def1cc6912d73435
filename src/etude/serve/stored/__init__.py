"""Served streams as folders that other commands take."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.serve.stored.folder import read_served as read_served
    from etude.serve.stored.folder import write_served as write_served
    from etude.serve.stored.folder import write_workflow as write_workflow

__getattr__ = face(__name__)
