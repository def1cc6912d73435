"""Images and videos as requests: denoising steps on groups of devices, whose size may change between two steps."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.images.costs import image_costs as image_costs
    from etude.world.serve.images.requests import image_stream as image_stream
    from etude.world.serve.images.results import image_summary as image_summary
    from etude.world.serve.images.serving import serve_images as serve_images
    from etude.world.serve.images.words import degree_rule as degree_rule

__getattr__ = face(__name__)
