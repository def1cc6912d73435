"""Reports: runs the analyses of a run and presents their findings, in words and in pictures."""

from typing import TYPE_CHECKING

from etude.faces import face, verb

if TYPE_CHECKING:
    from etude.report.compare import comparison as comparison
    from etude.report.compose import PARTS as PARTS
    from etude.report.compose import findings as findings
    from etude.report.compose import report as report
    from etude.report.device import device_of as device_of
    from etude.report.device import recognised as recognised
    from etude.report.served import served_page as served_page
    from etude.report.workflow import workflow_page as workflow_page

__getattr__ = face(__name__)
verb(__name__)
