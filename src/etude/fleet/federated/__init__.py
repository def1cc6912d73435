"""Federated rounds: clients of mixed devices and links that train a part each, and a server that waits for them."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.fleet.federated.clients import Clients as Clients
    from etude.fleet.federated.clients import read_clients as read_clients
    from etude.fleet.federated.rounds import Federated as Federated
    from etude.fleet.federated.rounds import federate as federate

__getattr__ = face(__name__)
