"""Selects and rewrites nodes of a trace, column by column: the basis of every edit."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.transform.rewrite.rewriting import Rewriting as Rewriting
    from etude.make.transform.rewrite.selector import ProgramView as ProgramView
    from etude.make.transform.rewrite.selector import Selector as Selector

__getattr__ = face(__name__)
