"""Selects and rewrites nodes of a trace, column by column: the basis of every edit."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.transform.rewrite.rewriting import Rewriting as Rewriting
    from etude.transform.rewrite.selector import Selector as Selector
    from etude.transform.rewrite.selector import View as View

__getattr__ = face(__name__)
