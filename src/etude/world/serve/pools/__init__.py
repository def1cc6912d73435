"""Replicas in different groups, and the network between them."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.curves import decode_curve as decode_curve
    from etude.world.serve.pools.groups import Between as Between
    from etude.world.serve.pools.groups import Pool as Pool
    from etude.world.serve.pools.groups import between_options as between_options
    from etude.world.serve.pools.groups import deployed_pools as deployed_pools
    from etude.world.serve.pools.groups import function_of as function_of
    from etude.world.serve.pools.groups import pools_of as pools_of
    from etude.world.serve.pools.groups import read_pools as read_pools

__getattr__ = face(__name__)
