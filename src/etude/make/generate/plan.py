"""Plan: how a model is distributed over ranks, and how a step is trained. Impossible plans are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields, replace
from typing import Any, Final

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import figure, key_of, read, said, text, usage_errors
from etude.base.grammar import line
from etude.make.generate.blocks import halo, loads, recompute, trained
from etude.make.generate.choices import (
    BY_BUDGET,
    Attention,
    Batching,
    ContextKind,
    ContextMap,
    Dispatch,
    Optimizer,
    Precision,
    Scaling,
)
from etude.make.generate.maps import shares
from etude.make.generate.model.shape import Family, Mixer, Model
from etude.model.job import MAX_WORLD

AXES: Final = ("tp", "cp", "dp", "pp")


_BY_BUDGET: Final = "|".join(f"batching={one}" for one in BY_BUDGET)
OF_EXPERTS: Final = ("ep", "etp", "moe_skew", "moe_loads", "moe_seed", "dispatch", "ep_node", "moe_nodes", "capacity")
"""Axes that only models with experts have a use for."""
WAITING: Final = 64
"""Samples among which `online` chooses by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a step runs. `gpus` = tp · cp · dp · pp; experts are on the ranks of a stage as etp · ep · their copies.

    etude.generate("llama3-8b", etude.Plan(gpus=16, tp=2))
    """

    gpus: int = figure(
        "count", "number of ranks; default: the smallest number that fits the axes", 0, like=1024, most=MAX_WORLD
    )
    tp: int = figure("count", "tensor parallel", 1, most=MAX_WORLD)
    cp: int = figure("count", "context parallel", 1, most=MAX_WORLD)
    pp: int = figure("count", "pipeline parallel", 1, most=MAX_WORLD)
    ep: int = figure("count", "expert parallel, over the ranks of a stage", 1, most=MAX_WORLD)
    etp: int = figure("count", "tensor parallel inside experts", 1, rare=True)
    sp: bool | None = figure("flag", "sequence parallel; default: with tensor parallelism", None, needs="tp", rare=True)
    cp_kind: ContextKind = figure(
        "choice", "how context-parallel ranks exchange keys", ContextKind.RING, needs="cp", rare=True
    )
    cp_map: ContextMap = figure(
        "choice",
        "assignment of blocks of documents to context-parallel ranks; keys go to ranks that read them (ring: to all)",
        ContextMap.NONE,
        needs="cp",
        rare=True,
    )
    block: int = figure("count", "tokens of a block of --cp-map; 0: 16 blocks per rank", 0, needs="cp_map", rare=True)
    cp_shares: tuple[int, ...] = figure(
        "list",
        "tokens of each context-parallel rank, which add up to the sequence; with a map of runs, or ulysses",
        (),
        of=int,
        like="4096,4096",
        needs="cp_map=zigzag|cp_map=contiguous|cp_kind=ulysses",
        rare=True,
    )
    cp_heads: tuple[int, ...] = figure(
        "list",
        "attention heads of each context-parallel rank, which add up to all; with ulysses",
        (),
        of=int,
        like="16,16",
        needs="cp_kind=ulysses",
        rare=True,
    )
    domain: str = text("rows x columns of context-parallel ranks that share an image, `2x4`", like="1x2", rare=True)
    order: str = figure(
        "text",
        "axes from the fastest to the slowest in the numbering of ranks",
        "tp-cp-dp-pp",
        like="cp-tp-dp-pp",
        rare=True,
    )
    schedule: str = figure(
        "text", "schedule of the pipeline: 1f1b, gpipe, interleaved:4, zb1p, ...", "1f1b", like="gpipe"
    )
    stages: tuple[int, ...] = figure(
        "list", "layers of each pipeline stage (with chunks: in model order)", (), of=int, like="8,8,8,8", rare=True
    )
    micro_batch: int = figure("count", "samples of a micro-batch", 1, most=1 << 31)
    global_batch: int = figure(
        "count", "samples per step; default: one micro-batch per data-parallel rank, 2 pp with a pipeline", 0
    )
    steps: int = figure("count", "number of steps in the job", 1, most=1_000_000)
    seq: int = figure("count", "sequence length; 0: the model's", 0, most=1 << 31)
    lengths: str = text(
        "lengths of samples: 2048, or 512:0.5,4096:0.5, or a .csv file; default: all of length seq",
        like="512:0.5,1024:0.5",
    )
    batching: Batching = figure(
        "choice", "how samples of --lengths are batched", Batching.FIXED, needs="lengths", rare=True
    )
    length_seed: int = figure("count", "seed of the drawn lengths", 0, needs="lengths", rare=True)
    budget: int = figure(
        "count", "largest number of tokens in a micro-batch; 0: micro_batch x seq", 0, needs=_BY_BUDGET, rare=True
    )
    power: float = figure(
        "number",
        "batching `compute`: samples x longest^power is bounded; 0: the model's work",
        0.0,
        needs="batching=compute",
        rare=True,
    )
    memory_budget_bytes: int = figure(
        "bytes", "memory of a rank that micro-batches may fill; 0: no limit", 0, needs=_BY_BUDGET, rare=True
    )
    window: int = figure(
        "count", f"batching `online`: number of waiting samples; 0: {WAITING}", 0, needs="batching=online", rare=True
    )
    samples: int = figure(
        "count", "samples per epoch, which sets the number of steps; 0: no limit", 0, needs="lengths", rare=True
    )
    join: bool = figure(
        "flag",
        "ranks without samples run empty steps until all ranks have finished the epoch",
        False,
        needs="samples",
        rare=True,
    )
    zero: int = figure("count", "ZeRO stage: 1 optimizer, 2 and gradients, 3 and weights (FSDP)", 0)
    directives: str = text(
        "rewrites of the step: a YAML file, or FILE.py:name; they replace --zero", like="zero3.yaml", rare=True
    )
    dp_shard: int = figure(
        "count", "ranks that a sharded copy is spread over (HSDP); 0: all", 0, needs="zero|directives", rare=True
    )
    reshard: bool = figure(
        "flag", "FSDP frees weights after the forward pass", True, needs="zero=3|directives", rare=True
    )
    prefetch: int = figure(
        "count",
        "number of blocks whose weights FSDP gathers ahead of use",
        1,
        zero=True,
        needs="zero=3|directives",
        rare=True,
    )
    bucket: int = figure(
        "count",
        "parameters whose gradients are reduced in one collective; ZeRO 3 has one for each block",
        40_000_000,
        needs="zero=0|zero=1|zero=2",
        rare=True,
    )
    overlap_grads: bool = figure("flag", "gradients are reduced during the backward pass", True, rare=True)
    overlap_params: bool = figure(
        "flag", "updated weights are gathered during the forward pass", True, needs="zero=1|zero=2", rare=True
    )
    tp_chunks: int = figure(
        "count", "pieces in which split layers overlap their collectives; 1: none", 1, needs="tp", rare=True
    )
    recompute: str = figure(
        "text",
        "what is recomputed: none, selective (attention), full (layers), parts "
        "(selective:attention,norm,activation,experts,"
        "ffn,latent), or layers except what is kept or not needed (full:needed,qkv,out,core,gate)",
        "none",
        like="full",
    )
    unfused: str = text(
        "computed by unfused tensor operations, which keep and move more, one or more of: activation (of gates), norm "
        "(RMS), bias (of experts)",
        like="norm",
        rare=True,
    )
    train: str = figure(
        "text",
        "what is trained: all, forward (nothing, no backward pass), frozen (gradients only pass through), layers:24.., "
        "lora:16, lora:16:qkv",
        "all",
        like="forward",
    )
    precision: Precision = figure("choice", "precision of activations and products", Precision.BF16)
    scaling: Scaling = figure(
        "choice",
        "scaling of 8-bit products: delayed, current, block, mx",
        Scaling.DELAYED,
        needs="precision=fp8",
        rare=True,
    )
    grad_dtype: str = figure("text", "data type in which gradients are summed", "fp32", like="bf16", rare=True)
    optimizer: Optimizer = figure("choice", "optimizer that updates the weights", Optimizer.ADAMW)
    keep_cast: bool = figure(
        "flag",
        "inputs of activations are kept for the backward pass in the type of the products (DeepSeek-V3)",
        False,
        needs="precision=fp8|precision=fp4",
        rare=True,
    )
    keep_grads: bool = figure(
        "flag", "gradients keep their memory between steps (Megatron's buffers)", False, rare=True
    )
    loss_dtype: str = figure("text", "data type of logits in the loss", "fp32", like="bf16", rare=True)
    state_dtype: str = figure("text", "data type of the optimizer's moments", "fp32", like="bf16", rare=True)
    master: bool = figure("flag", "the optimizer also keeps weights in fp32", True, rare=True)
    attention: Attention = figure("choice", "fused: one kernel; unfused: scores in memory", Attention.FLASH, rare=True)
    clip: bool = figure("flag", "gradients are clipped by their norm", True, rare=True)
    moe_skew: float = figure("number", "load of the fullest expert rank relative to the mean", 1.0, rare=True)
    moe_loads: str = text(
        "load of each expert: zipf:1.2, dirichlet:0.5, 3,1,1,1 or a .csv file; default: all have the same",
        like="zipf:1.2",
        rare=True,
    )
    moe_seed: int = figure("count", "seed of the drawn loads", 0, needs="moe_loads", rare=True)
    dispatch: Dispatch = figure(
        "choice",
        "data type of tokens sent to experts",
        Dispatch.PRODUCTS,
        needs="precision=fp8|precision=fp4",
        rare=True,
    )
    ep_node: int = figure(
        "count",
        "expert-parallel ranks per node: a token goes once to each node, and there to each rank; 0: every copy is sent",
        0,
        needs="ep",
        rare=True,
    )
    moe_nodes: int = figure(
        "count", "largest number of nodes with experts of one token (with ep_node)", 0, needs="ep_node", rare=True
    )
    capacity: float = figure("number", "capacity of an expert relative to the mean; 0: no limit", 0.0, rare=True)
    data_loading: bool = figure("flag", "the first stage loads the micro-batch", False, rare=True)
    checkpoint: bool = figure("flag", "the state is written at the end", False, rare=True)
    host_bandwidth_bytes_per_s: float = figure(
        "bandwidth",
        "bandwidth between a rank and the host's memory, from which `roundrobin` streams weights",
        0.0,
        rare=True,
    )
    host_ns: float = figure("time", "host time to issue an op; 0: the host is ahead", 0.0, rare=True)
    graphs: bool = figure(
        "flag",
        "the host issues CUDA graphs of everything whose size does not depend on routing, at no cost",
        False,
        needs="host",
        rare=True,
    )
    step_overhead_ns: float = figure("time", "host time between steps", 0.0, rare=True)

    def __post_init__(self) -> None:
        if not self.gpus:
            object.__setattr__(self, "gpus", self.pp * math.lcm(self.tp * self.cp, self.ep * self.etp))
        recompute.parse(self.recompute)
        for part in line(self.unfused, "unfused", error=ClusterError).split(",") if self.unfused else ():
            part.choice(("activation", "norm", "bias"))
        if trained.parse(self.train).rank and (self.tp_chunks > 1 or self.etp > 1):
            raise ClusterError("adapters need products in one piece", hint="leave out --tp-chunks and --etp")
        axes = self.order.split("-")
        if sorted(axes) != sorted(AXES):
            raise ClusterError(f"order `{self.order}` does not name each of {', '.join(AXES)} once", hint="tp-cp-dp-pp")
        inner = self.tp * self.cp * self.pp
        if self.gpus % inner:
            raise ClusterError(
                f"{self.gpus:,} ranks are not a multiple of tp {self.tp} x cp {self.cp} x pp {self.pp} = {inner:,}",
                hint=f"--gpus {-(-self.gpus // inner) * inner:,}",
            )
        if self.stage_ranks % (self.ep * self.etp):
            raise ClusterError(
                f"experts: the {self.stage_ranks:,} ranks of a stage are not a multiple of "
                f"ep {self.ep} x etp {self.etp}",
                hint=f"an --ep that divides {self.stage_ranks // self.etp:,}",
            )
        self._check_map()
        if self.domain and (self.lengths or self.cp_map != ContextMap.NONE):
            raise ClusterError(
                "a domain applies only to images, which have no lengths", hint="leave out --lengths and --cp-map"
            )
        if self.domain and self.domain_of[0] * self.domain_of[1] != self.cp:
            hint = f"--cp {self.domain_of[0] * self.domain_of[1]}"
            raise ClusterError(f"a domain of {self.domain} ranks does not match cp {self.cp}", hint=hint)
        if self.sp and self.tp == 1:
            raise ClusterError("sequence parallelism needs tensor parallelism", hint="--tp 2, or no --sp")
        if not 0 <= self.zero <= 3:
            raise ClusterError(f"there is no ZeRO stage {self.zero}", hint="0 to 3")
        if self.dp_shard and self.replicas % self.dp_shard:
            raise ClusterError(f"{self.replicas} copies cannot be sharded in groups of {self.dp_shard}")
        domain, spread = self.dp_shard * self.tp, self.ep * self.etp
        if self.dp_shard and domain % spread and spread % domain:
            raise ClusterError(
                f"experts spread over ep {self.ep} x etp {self.etp} = {spread} ranks do not fit groups of "
                f"dp_shard {self.dp_shard} x tp {self.tp} = {domain}",
                hint="an --ep that divides the group",
            )
        if self.optimizer == Optimizer.MUON and self.zero:
            raise ClusterError("Muon needs whole matrices; sharded ones are not supported", hint="leave out --zero")
        if self.directives and self.optimizer != Optimizer.ADAMW:
            raise ClusterError("directives need AdamW", hint="leave out --optimizer with --directives")
        if self.directives and self.zero:
            raise ClusterError("directives replace ZeRO stages", hint="leave out --zero with --directives")
        if self.dp_shard and self.zero < 1 and not self.directives:
            raise ClusterError("dp_shard needs sharding", hint="--zero 3")
        step = self.dp * self.micro_batch
        if self.global_batch % step:
            raise ClusterError(
                f"a batch of {self.global_batch:,} is not a multiple of dp {self.dp} x micro-batch {self.micro_batch}",
                hint=f"--global-batch {-(-self.global_batch // step) * step}",
            )
        if not 1.0 <= self.moe_skew <= max(2.0, self.ep):
            raise ClusterError(
                f"skew {self.moe_skew}: the fullest of {self.ep} expert ranks has between 1 and {max(2, self.ep)} "
                "times the mean"
            )
        if self.scaling != Scaling.DELAYED and self.precision != Precision.FP8:
            raise ClusterError(f"scaling `{self.scaling}` applies only to 8-bit products", hint="--precision fp8")
        loads.check(self.moe_loads)
        if self.moe_loads and self.moe_skew != 1.0:
            raise ClusterError(
                "loads of experts already set how full ranks are", hint="leave out --moe-skew or --moe-loads"
            )
        self._check_nodes()
        if self.capacity and self.capacity < 1.0:
            raise ClusterError(f"a capacity of {self.capacity} is less than the mean")
        if not self.lengths and self.batching != Batching.FIXED:
            raise ClusterError(f"batching `{self.batching}` needs lengths", hint="--lengths 512:0.5,4096:0.5")
        self._check_batching()
        if self.lengths and self.etp > 1 and (self.tp % self.etp or not self.order.startswith("tp")):
            raise ClusterError("samples of different lengths need experts that are split within a copy", hint="--etp 1")
        for name in ("grad_dtype", "state_dtype", "loss_dtype"):
            if getattr(self, name) not in ("fp32", "bf16", "fp16"):
                raise ClusterError(f"{name}: `{getattr(self, name)}`", hint="fp32, bf16 or fp16")

    def _check_shares(self) -> None:
        for name in ("cp_shares", "cp_heads"):
            if not getattr(self, name):
                continue
            shares.check(name.replace("_", "-"), getattr(self, name), self.cp)
            if self.lengths or self.ep > 1:
                raise ClusterError(
                    "unequal parts need sequences of one length, and no experts", hint="leave out --lengths and --ep"
                )
        if self.cp_kind == ContextKind.ULYSSES:
            return
        if self.cp_heads:
            raise ClusterError("shares of heads need ulysses attention", hint="--cp-kind ulysses")
        if self.cp_shares and (self.cp_map not in (ContextMap.ZIGZAG, ContextMap.CONTIGUOUS) or self.micro_batch > 1):
            raise ClusterError("unequal parts must be runs of one sequence", hint="--cp-map zigzag --micro-batch 1")

    def _check_map(self) -> None:
        self._check_shares()
        if self.cp_map == ContextMap.NONE:
            if self.block:
                raise ClusterError("a block needs a map", hint="--cp-map lpt, or no --block")
            return
        if self.cp == 1:
            raise ClusterError("a map needs context-parallel ranks", hint="--cp 2, or no --cp-map")
        if self.cp_kind != ContextKind.RING or self.attention != Attention.FLASH:
            raise ClusterError("a map has its own messages", hint="leave out --cp-kind and --attention unfused")
        if self.lengths and self.batching not in (Batching.FIXED, Batching.PACKED):
            raise ClusterError(f"a map does not support batching `{self.batching}`", hint="--batching packed or fixed")
        if "attention" in self.twice:
            raise ClusterError("with a map, recompute whole layers or no attention", hint="--recompute full")
        if self.ep > 1 or self.samples:
            raise ClusterError("a map gives ranks unequal tokens", hint="leave out --ep and --samples")

    def _check_batching(self) -> None:
        """Refuses figures of a batching that is not chosen: they would have no effect."""
        wants = {
            "budget": BY_BUDGET,
            "memory_budget_bytes": BY_BUDGET,
            "power": (Batching.COMPUTE,),
            "window": (Batching.ONLINE,),
            "samples": tuple(b for b in Batching if b != Batching.PACKED),
        }
        for name, batchings in wants.items():
            if getattr(self, name) and not (self.lengths and self.batching in batchings):
                flag = name.removesuffix("_bytes").replace("_", "-")
                raise ClusterError(
                    f"{flag.replace('-', ' ')} needs lengths and the batching {' or '.join(batchings)}",
                    hint=f"--lengths 512:0.5,4096:0.5 --batching {batchings[0]}, or no --{flag}",
                )
        if self.join and not self.samples:
            raise ClusterError("join needs an epoch", hint="--samples 10000, or no --join")
        if self.samples and self.steps > 1:
            raise ClusterError(
                "the samples of an epoch already set the number of steps", hint="--steps or --samples, not both"
            )

    def _check_nodes(self) -> None:
        """Checks for tokens that are sent to each node once."""
        if self.moe_nodes and not self.ep_node:
            raise ClusterError("moe_nodes needs the number of expert-parallel ranks per node", hint="--ep-node 8")
        if not self.ep_node:
            return
        if self.ep % self.ep_node:
            raise ClusterError(f"{self.ep} expert-parallel ranks are not a multiple of {self.ep_node} per node")
        if self.moe_nodes > self.ep // self.ep_node:
            raise ClusterError(f"moe_nodes {self.moe_nodes}: there are {self.ep // self.ep_node} nodes")
        if self.moe_skew != 1.0 or self.moe_loads:
            hint = "leave out --moe-skew and --moe-loads"
            raise ClusterError("sending tokens to each node once needs equally loaded experts", hint=hint)

    def refuse_unread(self, given: Iterable[str], model: Any, spelled: Callable[[str], str] = "`{}`".format) -> None:
        """Raises UsageError for the first of these axes that differs from its default and that nothing reads in this
        plan of this model, as `spelled` writes it."""
        known = {name: f for f in fields(self) for name in (f.name, key_of(f))}
        said = {key: getattr(self, known[key].name) for key in given}
        self.refuse_experts(said, model, spelled)
        for key in said:
            f = known[key]
            if said[key] in (f.default, ()):
                continue
            needs = [one.partition("=") for one in f.metadata.get("needs", "").split("|") if one]
            if needs and not any(self._has(known[name], wanted) for name, _, wanted in needs):
                wanted = " or ".join(spelled(name) + (f" {value}" if value else "") for name, _, value in needs)
                raise UsageError(f"{spelled(key)} is read only with {wanted}", hint="leave it out, or add the other")

    @classmethod
    def refuse_experts(
        cls, given: Mapping[str, Any], model: Any, spelled: Callable[[str], str] = "`{}`".format
    ) -> None:
        """Raises UsageError for axes of experts, unlike their defaults, of a model that has none."""
        usual = {f.name: f.default for f in fields(cls)}
        unread = [] if model.experts else [key for key in OF_EXPERTS if given.get(key, usual[key]) != usual[key]]
        if unread:
            problem = f"{spelled(unread[0])} is read only for models with experts, and `{model.name}` has none"
            raise UsageError(problem, hint="leave it out")

    def _has(self, f: Field[Any], wanted: str) -> bool:
        value = getattr(self, f.name)
        return str(value) == wanted if wanted else bool(value != f.default)

    def __repr__(self) -> str:
        return said(self)

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.gpus // (self.tp * self.cp * self.pp)

    @property
    def stage_ranks(self) -> int:
        return self.gpus // self.pp

    @property
    def replicas(self) -> int:
        """Ranks that hold the same dense weights: data and context parallel."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> int:
        return self.stage_ranks // (self.ep * self.etp)

    @property
    def shards(self) -> int:
        """Ranks that a sharded dense weight is split over."""
        return (self.dp_shard or self.replicas) if self.zero else 1

    @property
    def expert_shards(self) -> int:
        """Ranks that a sharded expert is split over: its copies in a group of `dp_shard`, or all."""
        if not self.zero:
            return 1
        whole = self.dp_shard * self.tp // (self.ep * self.etp) if self.dp_shard else self.expert_replicas
        return max(whole, 1)

    @property
    def batch(self) -> int:
        """Samples per step."""
        usual = 2 * self.pp if self.pp > 1 else 1
        return self.global_batch or self.dp * self.micro_batch * usual

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one pipeline per step."""
        return self.batch // (self.dp * self.micro_batch)

    @property
    def sequence_parallel(self) -> bool:
        return self.tp > 1 if self.sp is None else self.sp

    @property
    def domain_of(self) -> tuple[int, int]:
        """Rows and columns of ranks that share an image."""
        return halo.parse(self.domain) if self.domain else (1, 1)

    @property
    def twice(self) -> frozenset[str]:
        """Parts that are recomputed."""
        return recompute.parse(self.recompute)

    @property
    def recomputes_layers(self) -> bool:
        return recompute.LAYER in self.twice

    @property
    def frozen(self) -> bool:
        """Whether the model's own weights get no gradients, while activations do."""
        return trained.parse(self.train).kind in ("lora", "frozen")

    def step_kind(self, model: Model) -> str:
        """`dense`, `experts`, `adapters`, `recurrent`, or the family of a model that is not a decoder: steps of one
        kind have errors of one size when they are predicted."""
        if model.family != Family.DECODER:
            return str(model.family)
        if set(model.mixers) - {Mixer.ATTENTION, Mixer.NONE}:
            return "recurrent"
        if self.frozen:
            return "adapters"
        return "experts" if model.experts else "dense"

    def elements(self, model: Model) -> float:
        """Of the activation of a micro-batch on a device, where it is split."""
        tokens = self.micro_batch * (self.seq or model.seq)
        return float(tokens * model.hidden) / (self.cp * self.tp)

    def case_of(self, model: Model) -> dict[str, str]:
        """What the errors of a predicted step depend on, as the provenance of its job says it."""
        elements = f"{self.elements(model):.12g}"
        return {"kind": self.step_kind(model), "precision": str(self.precision), "elements": elements}

    @property
    def dtype(self) -> str:
        return "bf16" if self.precision in (Precision.FP8, Precision.FP4) else str(self.precision)

    @property
    def weight_scale_bytes(self) -> float:
        """Bytes of the scales of an 8-bit weight."""
        return {Scaling.MX: 1 / 32, Scaling.BLOCK: 4 / 128**2}.get(self.scaling, 0.0)

    @property
    def product_dtype(self) -> str:
        """Data type of the products of layers."""
        return str(self.precision)

    def replace(self, **changes: Any) -> Plan:
        return replace(self, **changes)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any], where: str = "plan") -> Plan:
        with usage_errors(where):
            return read(cls, given, where)
