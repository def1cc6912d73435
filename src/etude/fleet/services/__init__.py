"""Small services that share one device: queues, batches, early exits, and who goes next."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.fleet.services.costs import forward_costs as forward_costs
    from etude.fleet.services.loop import serve_services as serve_services
    from etude.fleet.services.results import services_record as services_record
    from etude.fleet.services.spec import is_services as is_services
    from etude.fleet.services.spec import read_services as read_services

__getattr__ = face(__name__)
