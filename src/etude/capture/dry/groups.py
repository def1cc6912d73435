"""Process groups that answer every collective at once: a rank runs by itself; others are taken to do the same."""

import functools
from importlib import import_module
from typing import Any

from etude.capture.dry.exchanges import REDUCTIONS
from etude.capture.dry.meshes import real_meshes
from etude.capture.dry.post import Post
from etude.capture.dry.watch import Watch

_CALLS = (
    "allreduce",
    "allreduce_coalesced",
    "allgather",
    "_allgather_base",
    "allgather_into_tensor_coalesced",
    "allgather_coalesced",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
    "alltoall_base",
    "barrier",
    "send",
    "recv",
    "recv_anysource",
    "_end_coalescing",
)


def stand_in(torch: Any, watch: Watch, real: Any, post: Post, *, rank: int, world: int) -> None:
    """Makes `init_process_group` start a group of the backend `fake`, whatever backend is asked for. `real` is a
    context in which tensors have numbers: that of meshes of ranks."""
    dist = torch.distributed
    fake: Any = import_module("torch.testing._internal.distributed.fake_pg")
    begin = dist.init_process_group

    def init_process_group(*args: Any, **named: Any) -> None:
        begin(backend="fake", store=fake.FakeStore(), rank=rank, world_size=world)

    def new_group(original: Any) -> Any:
        def make(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **named: Any) -> Any:
            named.pop("pg_options", None)
            if ranks is not None:
                watch.made_groups.append([int(one) for one in ranks])
            return original(ranks, timeout, "fake" if backend is not None else None, **_without_device(named))

        return make

    module: Any = import_module("torch.distributed.distributed_c10d")
    meshes: Any = import_module("torch.distributed.device_mesh")
    for owner in (dist, module, meshes):  # a mesh starts the groups if the program has not
        owner.init_process_group = init_process_group
    module.new_group = new_group(module.new_group)
    for owner in (dist, meshes):
        owner.new_group = module.new_group
    dist._verify_params_across_processes = lambda *args: None
    _share_objects(dist, module, post)
    _note_works(dist, watch)
    real_meshes(real)


def _without_device(named: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in named.items() if key != "device_id"}


def _share_objects(dist: Any, module: Any, post: Post) -> None:
    """Objects of other ranks are those of this one, but for those that are sent to one rank."""

    def all_gather_object(found: list[Any], given: Any, group: Any = None) -> None:
        found[:] = [given] * len(found)

    def gather_object(given: Any, found: list[Any] | None = None, *args: Any, **named: Any) -> None:
        if found is not None:
            found[:] = [given] * len(found)

    def scatter_object_list(found: list[Any], given: Any, *args: Any, **named: Any) -> None:
        found[:] = list(given)[: len(found)] if given else found

    for owner in (dist, module):
        owner.all_gather_object = all_gather_object
        owner.gather_object = gather_object
        owner.broadcast_object_list = lambda objects, *args, **named: None
        owner.scatter_object_list = scatter_object_list
        owner.send_object_list = lambda objects, dst=0, *args, **named: post.send(objects, dst)
        owner.recv_object_list = lambda objects, src=None, *args, **named: post.take(objects, src)
        owner.monitored_barrier = lambda *args, **named: None


def _note_works(dist: Any, watch: Watch) -> None:
    """A work that is waited for lets the current stream wait for its communication."""
    for name in _CALLS:
        original = getattr(dist.ProcessGroup, name, None)
        if original is None:
            continue

        def call(group: Any, *args: Any, original: Any = original, **named: Any) -> Any:
            before, watch.reduction = len(watch.rows), _reduction(dist, [*args, *named.values()])
            work = original(group, *args, **named)
            watch.reduction = ""
            if work is not None and len(watch.rows) > before:
                watch.work_rows[id(work)] = work, len(watch.rows) - 1
            return work

        setattr(dist.ProcessGroup, name, functools.wraps(original)(call))
    waiting = dist.Work.wait

    def wait(work: Any, *args: Any) -> bool:
        _, row = watch.work_rows.pop(id(work), (None, -1))
        watch.wait(row)
        waiting(work)
        return True

    dist.Work.wait = wait


def _reduction(dist: Any, given: list[Any]) -> str:
    """What a call reduces by, such as `SUM`."""
    asked = [getattr(one, "reduceOp", one) for one in given]
    kinds = (dist.ReduceOp, dist.ReduceOp.RedOpType)
    found = next((one for one in asked if isinstance(one, kinds)), None)
    return next((name for name in REDUCTIONS if found == getattr(dist.ReduceOp, name)), "") if found is not None else ""
