"""A job from a program that never ran: tensors have shapes and no numbers, collectives are answered at once.

`python -m etude.capture.dry` is started by `launch`, and forks each rank that is asked for: that side needs PyTorch and
nothing else. `program` makes a job of what the ranks wrote.
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.capture.dry.launch import DrySettings as DrySettings
    from etude.capture.dry.launch import stated_answers as stated_answers
    from etude.capture.dry.program import DryProgram as DryProgram
    from etude.capture.dry.program import dry_program as dry_program
    from etude.capture.dry.program import dry_record as dry_record

__getattr__ = face(__name__)
