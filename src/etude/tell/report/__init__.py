"""Reports: runs the analyses of a run and presents their findings, in words and in pictures."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.analyse.devices import device_of as device_of
    from etude.tell.report.compare import comparison as comparison
    from etude.tell.report.compose import PARTS as PARTS
    from etude.tell.report.compose import findings as findings
    from etude.tell.report.compose import report as report
    from etude.tell.report.served import served_page as served_page
    from etude.tell.report.workflow import workflow_page as workflow_page

__getattr__ = face(__name__)
