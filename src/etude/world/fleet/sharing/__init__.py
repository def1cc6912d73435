"""Many jobs on one set of devices: arrivals, gangs, placement, policies."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.fleet.sharing.cluster import read_cluster as read_cluster
    from etude.world.fleet.sharing.gangs import SharingTimes as SharingTimes
    from etude.world.fleet.sharing.jobs import read_jobs as read_jobs
    from etude.world.fleet.sharing.pool import is_pool as is_pool
    from etude.world.fleet.sharing.pool import read_pool as read_pool
    from etude.world.fleet.sharing.results import shared_record as shared_record
    from etude.world.fleet.sharing.results import shared_tables as shared_tables
    from etude.world.fleet.sharing.run import share as share

__getattr__ = face(__name__)
