"""Predicted figures with the ranges that held-out errors of such cases leave."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.cost.estimates.cases import EstimateCase as EstimateCase
    from etude.cost.estimates.estimate import Estimate as Estimate
    from etude.cost.estimates.estimate import columns as columns
    from etude.cost.estimates.estimate import range_of as range_of
    from etude.cost.estimates.estimate import said_range as said_range
    from etude.cost.estimates.evidence import estimate_of as estimate_of
    from etude.cost.estimates.evidence import no_evidence as no_evidence
    from etude.cost.estimates.evidence import without_evidence as without_evidence

__getattr__ = face(__name__)
