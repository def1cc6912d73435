"""What is in the host's memory and on its disk: keys and values, or experts."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.offload.experts import ExpertRules as ExpertRules
    from etude.world.serve.offload.experts import expert_rules as expert_rules
    from etude.world.serve.offload.experts import far_experts as far_experts
    from etude.world.serve.offload.experts import tables_of as tables_of
    from etude.world.serve.offload.paths import offloaded as offloaded

__getattr__ = face(__name__)
