"""The studio: runs in a browser of this machine, from a local server with a token. Look, ask, change, see.

access      who may ask
server      the files of the page, and answers
api         what can be asked
session     what is open
index       columns of the timeline on disk, with `building` and `kernels`
windows     what is drawn of them
folders     what is no run: tables of other verbs, as slices by `tables`
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.tell.studio.server import StudioServer as StudioServer
    from etude.tell.studio.session import StudioSession as StudioSession

__getattr__ = face(__name__)
