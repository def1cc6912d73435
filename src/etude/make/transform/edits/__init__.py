"""Edits: what-if changes of a job, one file each. `etude.edit(job, "compress group=dp ratio=2")`."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.transform.edits.applying import Edited as Edited
    from etude.make.transform.edits.applying import apply_edits as apply_edits
    from etude.make.transform.edits.applying import edit as edit
    from etude.make.transform.edits.spoken import Edit as Edit
    from etude.make.transform.edits.spoken import edit_table as edit_table

__getattr__ = face(__name__)
