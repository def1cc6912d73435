"""Prefill and decode of a causal language model that never ran: passes are the steps of a job without times."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from etude.base.errors import UsageError
from etude.base.trust import check_code
from etude.capture.dry.launch import DryRanks, DrySettings, refuse_problem
from etude.capture.dry.mesh import dry_job, uniform_mesh
from etude.capture.dry.recorded_rank import DryRank, dry_trace, read_dry_rank
from etude.capture.dry.served.grid import PassPoint
from etude.capture.dry.served.load_model import NoModelError, check_spec
from etude.kernels.arrays import I64
from etude.machine.system import Device
from etude.model.job import Job
from etude.model.schema import Kind

LINEAR: Final = 0.01
"""A cache whose bytes are further than this part off a line over its tokens is not a line."""


@dataclass(frozen=True, slots=True, eq=False)
class DryPasses:
    """Passes of a served model. Bytes are those of a rank."""

    job: Job
    points: tuple[PassPoint, ...]
    step: I64
    """The step of the job that each pass is."""
    weights_bytes: int
    token_bytes: float
    """What a token adds to the cache."""
    sequence_bytes: float
    """What a sequence has in the cache whatever its tokens are."""
    working_bytes: float
    """Of a pass besides weights and cache, per token."""
    leaves_out_logits: bool
    """Whether the model computes logits for the last tokens alone, if it is asked to."""
    vocabulary: int
    layers: int
    """0: the model does not say."""
    notes: tuple[str, ...]
    """What was assumed."""


def dry_passes(spec: str, device: Device, *, ranks: int = 1, answers: Mapping[str, float] | None = None) -> DryPasses:
    """Dry-runs a model of `load_model` on a device. With several ranks, it has to shard itself: the first is run, and
    the others are taken to do what it does."""
    try:
        _, function = check_spec(spec)
    except NoModelError as problem:
        raise UsageError(str(problem), where="--program", hint=problem.hint) from None
    if function:
        check_code(spec)
    about = {"name": device.name, "memory_bytes": device.memory_bytes, "units": device.cores}
    settings = DrySettings(world=ranks, device=about, warmup=0, steps=0, answers=dict(answers or {}))
    with tempfile.TemporaryDirectory(prefix="etude-dry-") as made:
        facts = Path(made) / "facts.json"
        command = ["python", "-m", "etude.capture.dry.served.serving", str(facts), spec]
        with DryRanks(command, Path(made), settings) as process:
            process.run([0])
            rank = read_dry_rank(Path(made) / "rank.0.json.gz")
        found = json.loads(facts.read_text()) if facts.exists() else {}
    if "refused" in found:
        raise UsageError(found["refused"], where="--program", hint=found["hint"])
    if rank.problem is not None:
        refuse_problem(0, rank.problem, world=1, on_device=True)
    unread = sorted(set(answers or ()) - set(rank.answered))
    if unread:
        raise UsageError(f"the program did not ask for {', '.join(unread)}", where="--answer", hint="leave it out")
    return _passes(spec, rank, found)


def _passes(spec: str, rank: DryRank, found: dict[str, Any]) -> DryPasses:
    trace = dry_trace(rank, 1)  # before the first pass the model is made
    if rank.world > 1 and not (trace.trace.kind != Kind.COMP).any():
        raise UsageError(
            f"the program does not shard itself over {rank.world} ranks: none of its operators communicates",
            where="--tp",
            hint="leave out --tp, or let the function shard the model over the ranks of torch.distributed",
        )
    job = dry_job(Path(spec).name, uniform_mesh(rank.group_members, rank.world), {0: trace})
    points = tuple(PassPoint(p["batch"], p["tokens"], p["past"], p["logits"]) for p in found["passes"])
    step = np.array([p["step"] for p in found["passes"]], np.int64)
    token, sequence, linear = _line(found["cache_bytes"])
    working = _working_bytes(rank, points, step, token)
    return DryPasses(
        job=job,
        points=points,
        step=step - 1,
        weights_bytes=found["weights_bytes"],
        token_bytes=token,
        sequence_bytes=sequence,
        working_bytes=working,
        leaves_out_logits=found["leaves_out_logits"],
        vocabulary=found["vocabulary"],
        layers=found["layers"],
        notes=(*_notes(found, points, sequence, linear=linear), *sorted(rank.notes)),
    )


def _line(cache_bytes: list[list[int]]) -> tuple[float, float, bool]:
    """(Bytes of a token, of a sequence, whether that is right everywhere) of one sequence's cache, from its longest and
    its shortest."""
    alone = sorted({(tokens, size) for batch, tokens, size in cache_bytes if batch == 1})
    (few, small), (many, large) = alone[0], alone[-1]
    token = max(0.0, (large - small) / max(1, many - few))
    sequence = max(0.0, small - token * few)
    linear = all(abs(token * tokens + sequence - size) <= LINEAR * large for tokens, size in alone)
    return token, sequence, linear


def _working_bytes(rank: DryRank, points: tuple[PassPoint, ...], step: I64, token_bytes: float) -> float:
    """Most bytes that a pass of a first prompt has besides what there was before and the cache that it leaves, per
    token: of the longest prompt, where what does not depend on tokens matters least."""
    events = np.array(rank.storages.events, np.int64).reshape(-1, 2)
    here = np.array(rank.storages.places, np.int64)[events[:, 0]] == 1
    held = np.concatenate([[0], np.cumsum(np.where(here, events[:, 1], 0))])
    ends = np.array(rank.step_events, np.int64).reshape(-1, 2)[:, 1]
    alone = [i for i, point in enumerate(points) if point.batch == 1 and not point.past and point.logits == 1]
    longest = max(alone, key=lambda i: points[i].tokens)
    first, last = int(ends[step[longest] - 1]), int(ends[step[longest]])
    tokens = points[longest].tokens
    most = int(held[first : last + 1].max()) - int(held[first])
    return max(0.0, most - token_bytes * tokens) / tokens


def _notes(found: dict[str, Any], points: tuple[PassPoint, ...], sequence_bytes: float, *, linear: bool) -> list[str]:
    def shown(values: set[int]) -> str:
        return ", ".join(f"{value:,}" for value in sorted(values))

    prompts = {p.tokens for p in points if p.batch == 1 and p.logits == 1 and p.tokens > 1}
    decodes = [p for p in points if p.tokens == 1 and p.past]
    kind = f" with `{found['attention']}` attention" if found["attention"] else ""
    told = [
        f"{found['model_class']} in {found['dtype']}{kind} and {found['cache_class']}, operator by operator as eager "
        "PyTorch runs it: nothing is fused, and there are no CUDA graphs",
        f"passes of the dry run: prompts of {shown(prompts)} tokens, decodes of {shown({p.batch for p in decodes})} "
        f"sequences, after {shown({p.past for p in points})} tokens; linear between these and beyond them",
        "prompts and decodes that share a pass take the layers of all their tokens at once, and attention of each",
    ]
    if not found["leaves_out_logits"]:
        told.append("the model has no `logits_to_keep`: prompts have logits of all their tokens")
    if not linear:
        told.append("the cache does not grow by the same bytes with each token: the mean up to the longest is taken")
    if sequence_bytes:
        told.append(f"a sequence has {sequence_bytes:,.0f} B in the cache whatever its length: room for --max-num-seqs")
    if found["quantised"]:
        told.append("the quantisation of the config is not applied: weights and products have its plain type")
    return told
