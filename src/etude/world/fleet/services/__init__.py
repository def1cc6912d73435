"""Small services and tasks that share one device: queues, batches, early exits, a shared backbone, and scheduling."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.fleet.services.backbone import backbone_record as backbone_record
    from etude.world.fleet.services.backbone import backbone_tables as backbone_tables
    from etude.world.fleet.services.backbone import serve_backbone as serve_backbone
    from etude.world.fleet.services.loop import serve_services as serve_services
    from etude.world.fleet.services.results import services_record as services_record
    from etude.world.fleet.services.results import services_tables as services_tables
    from etude.world.fleet.services.spec import read_backbone as read_backbone
    from etude.world.fleet.services.spec import read_services as read_services

__getattr__ = face(__name__)
