"""The card of a recorded run: from the manifests that `etude collect` wrote, else from the job itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from etude.capture.ingest.runs import RankFiles, manifest_of
from etude.model.card import Card, HardwareCard, ModelCard, PlanCard, SoftwareCard
from etude.model.job import Job

_AXES = ("tp", "cp", "dp", "pp", "ep")


def card_of_run(job: Job, ranks: Sequence[RankFiles]) -> Card:
    """The card of the ranks of a run; without a manifest from the traces."""
    said = [m for m in map(manifest_of, ranks) if m]
    return _of_manifest(job, said[0]) if said else card_of_job(job)


def card_of_job(job: Job) -> Card:
    said = job.provenance
    return Card(
        name=job.name,
        model=ModelCard(name=str(said.get("model", ""))),
        plan=PlanCard(ranks=job.world_size),
        hardware=HardwareCard(device=str(said.get("device", ""))),
        software=SoftwareCard(tool=str(said.get("tool", ""))),
    )


def _of_manifest(job: Job, said: Mapping[str, Any]) -> Card:
    """The plan given by people at the start: known keys go into the card, the rest is kept as text."""
    given = said.get("plan")
    given = dict(given) if isinstance(given, Mapping) else {}
    axes = {key: given.pop(key) for key in _AXES if isinstance(given.get(key), int) and given[key] > 0}
    product = axes.get("tp", 1) * axes.get("cp", 1) * axes.get("dp", 1) * axes.get("pp", 1)
    if product not in (1, job.world_size):  # then it does not split these ranks, and is kept as given
        given |= axes
        axes = {}
    devices = [d for d in said.get("devices", ()) if isinstance(d, Mapping)]
    last = devices[-1] if devices else {}
    device = str(last.get("name", last.get("type", "")))
    memory = last.get("memory_bytes")
    versions = said.get("versions")
    return Card(
        name=job.name,
        model=ModelCard(name=str(given.pop("model", ""))),
        plan=PlanCard(ranks=job.world_size, **axes, more={str(k): str(v) for k, v in given.items() if v is not None}),
        hardware=HardwareCard(
            device=device,
            devices=job.world_size if last.get("type") != "cpu" else 0,
            memory_bytes=memory if isinstance(memory, int) and memory > 0 else 0,
        ),
        software=SoftwareCard(
            tool="etude collect",
            backend=str(said.get("backend") or ""),
            versions={str(k): str(v) for k, v in versions.items()} if isinstance(versions, Mapping) else {},
        ),
    )
