"""A model without a training loop, and the program that trains it in a dry run."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.capture.dry.driven.model import file_model as file_model
    from etude.capture.dry.driven.request import DrivenProgram as DrivenProgram
    from etude.capture.dry.driven.request import check_program as check_program
    from etude.capture.dry.driven.request import input_tensors as input_tensors

__getattr__ = face(__name__)
