"""Federated rounds: clients with mixed devices and links that each train a part, and a server or a swarm."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.fleet.federated.clients import Clients as Clients
    from etude.world.fleet.federated.clients import read_clients as read_clients
    from etude.world.fleet.federated.request import ROUNDS as ROUNDS
    from etude.world.fleet.federated.rounds import RoundRules as RoundRules
    from etude.world.fleet.federated.rounds import federate as federate
    from etude.world.fleet.federated.rounds import rounds_of as rounds_of
    from etude.world.fleet.federated.swarm import Swarm as Swarm

__getattr__ = face(__name__)
