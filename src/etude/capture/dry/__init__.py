"""A job from a program that never ran: tensors have shapes and no numbers, collectives are answered at once.

`python -m etude.capture.dry` is started by `launch`, and forks each rank that is asked for: that side needs PyTorch and
nothing else. `program` makes a job of what the ranks wrote.
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.capture.dry.driver_request import DrivenProgram as DrivenProgram
    from etude.capture.dry.driver_request import check_program as check_program
    from etude.capture.dry.driver_request import input_tensors as input_tensors
    from etude.capture.dry.launch import DrySettings as DrySettings
    from etude.capture.dry.launch import stated_answers as stated_answers
    from etude.capture.dry.passes import DryPasses as DryPasses
    from etude.capture.dry.passes import dry_passes as dry_passes
    from etude.capture.dry.program import DryProgram as DryProgram
    from etude.capture.dry.program import dry_program as dry_program
    from etude.capture.dry.program import dry_record as dry_record
    from etude.capture.dry.serving_grid import PassPoint as PassPoint

__getattr__ = face(__name__)
