"""A causal language model as it is served: passes of a dry run over batch, new tokens and context."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.capture.dry.served.grid import PassPoint as PassPoint
    from etude.capture.dry.served.passes import DryPasses as DryPasses
    from etude.capture.dry.served.passes import dry_passes as dry_passes

__getattr__ = face(__name__)
