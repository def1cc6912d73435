"""Sections: a model as a graph of parts with separate plans, on separate or shared ranks, and the transfers between
them."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.generate.sections.job import Sectioned as Sectioned
    from etude.make.generate.sections.job import generate_sections as generate_sections
    from etude.make.generate.sections.spec import Sections as Sections
    from etude.make.generate.sections.spec import mix_of as mix_of
    from etude.make.generate.sections.spec import open_sections as open_sections

__getattr__ = face(__name__)
