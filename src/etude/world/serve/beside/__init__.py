"""What a model has besides its layers, and the matching properties of requests: adapters, image towers, tenants."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.beside.costs import adapter_bytes as adapter_bytes
    from etude.world.serve.beside.costs import lora_cost as lora_cost
    from etude.world.serve.beside.costs import tower_cost as tower_cost
    from etude.world.serve.beside.costs import weighed as weighed
    from etude.world.serve.beside.costs import with_images as with_images

__getattr__ = face(__name__)
