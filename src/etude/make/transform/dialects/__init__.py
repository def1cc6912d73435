"""Dialects: what a consumer of `.et` files needs beyond a Job. They are applied on export."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.transform.dialects.astra import astra_problems as astra_problems
    from etude.make.transform.dialects.astra import astra_refusals as astra_refusals
    from etude.make.transform.dialects.astra import for_astra as for_astra
    from etude.make.transform.dialects.astra import order_problem as order_problem
    from etude.make.transform.dialects.astra_system import astra_files as astra_files
    from etude.make.transform.dialects.simai import simai_text as simai_text
    from etude.make.transform.dialects.storage import as_memory as as_memory
    from etude.make.transform.dialects.storage import as_storage as as_storage

__getattr__ = face(__name__)
