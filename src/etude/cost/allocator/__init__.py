"""Memory of a device as PyTorch's caching allocator takes it, and what libraries take beside it."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.cost.allocator.simulation import AllocatorAction as AllocatorAction
    from etude.cost.allocator.simulation import AllocatorEvents as AllocatorEvents
    from etude.cost.allocator.simulation import AllocatorSettings as AllocatorSettings
    from etude.cost.allocator.simulation import AllocatorTimeline as AllocatorTimeline
    from etude.cost.allocator.simulation import simulate_allocator as simulate_allocator
    from etude.cost.allocator.workspaces import cublas_workspace_bytes as cublas_workspace_bytes
    from etude.cost.allocator.workspaces import nccl_buffer_bytes as nccl_buffer_bytes

__getattr__ = face(__name__)
