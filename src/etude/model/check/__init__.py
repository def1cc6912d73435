"""Checks a job: every way in which it is broken, as findings."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.model.check.findings import Finding as Finding
    from etude.model.check.findings import FindingList as FindingList
    from etude.model.check.whole import check as check

__getattr__ = face(__name__)
