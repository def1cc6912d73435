"""Keys and values in the host's memory and on its disk."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.serve.offload.paths import offloaded as offloaded

__getattr__ = face(__name__)
