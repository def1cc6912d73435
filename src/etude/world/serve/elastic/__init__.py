"""Plans that change and replicas that come and go while a stream is served."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.curves import slowed as slowed
    from etude.world.serve.elastic.deployed import elastic_pools as elastic_pools
    from etude.world.serve.elastic.lend import Lending as Lending
    from etude.world.serve.elastic.moves import change_ns as change_ns
    from etude.world.serve.elastic.moves import moved_bytes as moved_bytes
    from etude.world.serve.elastic.moves import pays as pays

__getattr__ = face(__name__)
