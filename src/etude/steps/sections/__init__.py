"""Predictions of jobs of several models."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.steps.sections.step import check_sections as check_sections
    from etude.steps.sections.step import completed_sections as completed_sections
    from etude.steps.sections.step import predict_sections as predict_sections
    from etude.steps.sections.step import sections_what_if as sections_what_if

__getattr__ = face(__name__)
