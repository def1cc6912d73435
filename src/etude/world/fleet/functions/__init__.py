"""Experts as functions: groups of experts that start when they are called, stay for a while, and scale to zero."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.fleet.functions.costs import expert_pieces as expert_pieces
    from etude.world.fleet.functions.loop import call_functions as call_functions
    from etude.world.fleet.functions.results import functions_record as functions_record
    from etude.world.fleet.functions.results import functions_tables as functions_tables
    from etude.world.fleet.functions.spec import read_functions as read_functions

__getattr__ = face(__name__)
