"""Nodes of a trace selected and rewritten, column by column: what every edit is made of."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.transform.rewrite.rewriting import Rewriting as Rewriting
    from etude.transform.rewrite.selector import Selector as Selector
    from etude.transform.rewrite.selector import View as View

__getattr__ = face(__name__)
