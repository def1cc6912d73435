"""A server of the Model Context Protocol: an assistant asks about traces and predicts steps, within a folder.

access      which files may be opened and where a copy may be written
bounds      how much of a result is sent
schema      what may be given to a tool, from the declaration of its verb
tools       what can be asked: verbs, called within the access
server      the tools as the `mcp` package serves them
worker      the process in which calls are answered, with limits on time and memory
"""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.surface.mcp.access import FolderAccess as FolderAccess
    from etude.surface.mcp.server import make_server as make_server
    from etude.surface.mcp.server import serve as serve

__getattr__ = face(__name__)
