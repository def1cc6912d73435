"""What is asked of serving: the parameters of each of its verbs, what they come to before any work, and its result.

stream      requests of a file, of a generator, or drawn
service     a model, its replicas, and what is between them
text, images, workflow, devices, offload, split, measured
            a verb each: its declaration, a frozen value of all that its run reads, and what happened
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.asked import devices as devices
    from etude.world.serve.asked import images as images
    from etude.world.serve.asked import measured as measured
    from etude.world.serve.asked import offload as offload
    from etude.world.serve.asked import split as split
    from etude.world.serve.asked import text as text
    from etude.world.serve.asked import workflow as workflow

__getattr__ = face(__name__)
