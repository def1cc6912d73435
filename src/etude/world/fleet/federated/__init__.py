"""Federated rounds: clients with mixed devices and links that each train a part, and a server or a swarm."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.fleet.federated.clients import Clients as Clients
    from etude.world.fleet.federated.clients import drawn_clients as drawn_clients
    from etude.world.fleet.federated.clients import read_clients as read_clients
    from etude.world.fleet.federated.presence import Together as Together
    from etude.world.fleet.federated.rounds import federate as federate
    from etude.world.fleet.federated.shares import trained as trained
    from etude.world.fleet.federated.splits import planned as planned
    from etude.world.fleet.federated.swarm import Swarm as Swarm

__getattr__ = face(__name__)
