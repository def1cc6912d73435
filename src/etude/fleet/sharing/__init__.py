"""Many jobs on one set of devices: arrivals, gangs, placement, policies."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.fleet.sharing.cluster import read_cluster as read_cluster
    from etude.fleet.sharing.gangs import Times as Times
    from etude.fleet.sharing.jobs import read_jobs as read_jobs
    from etude.fleet.sharing.pool import is_pool as is_pool
    from etude.fleet.sharing.pool import read_pool as read_pool
    from etude.fleet.sharing.results import shared_record as shared_record
    from etude.fleet.sharing.results import shared_tables as shared_tables
    from etude.fleet.sharing.run import share as share

__getattr__ = face(__name__)
