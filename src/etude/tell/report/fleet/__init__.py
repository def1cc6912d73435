"""Pages of fleets: days of a training job, jobs that share a cluster, requests on shared devices."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.tell.report.fleet.page import fleet_page as fleet_page

__getattr__ = face(__name__)
