"""Device memory shared by embeddings and keys and values, and how it is divided."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.split.serving import best_sequence as best_sequence
    from etude.world.serve.split.serving import served_split as served_split
    from etude.world.serve.split.words import RATIOS as RATIOS
    from etude.world.serve.split.words import SplitRules as SplitRules
    from etude.world.serve.split.words import split_rules as split_rules

__getattr__ = face(__name__)
