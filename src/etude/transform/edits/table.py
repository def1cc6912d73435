"""The edits that there are, one line each."""

from typing import Final

from etude.transform.edits import compress, drop, speed
from etude.transform.edits.definition import Definition

TABLE: Final[dict[str, Definition]] = {
    "speed": speed.EDIT,
    "drop": drop.EDIT,
    "compress": compress.EDIT,
}
