"""The file of sections: which models, on which ranks, with which plans, and what is passed between them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Any

from etude.base.errors import ClusterError, UsageError
from etude.base.figures import figure, read, read_mapping, text, usage_errors
from etude.base.grammar import line
from etude.make.generate.blocks import trained


class Carries(StrEnum):
    HIDDEN = "hidden"
    """Output of the last layer; the section has no head, and its gradient comes back unless it is forward only."""
    LOGITS = "logits"
    """Output of the head; nothing comes back."""
    TOKENS = "tokens"
    """Ids of the tokens that a rollout generated, for the embedding."""
    WEIGHTS = "weights"
    """Trained weights, for the next rollout."""


class Deal(StrEnum):
    """How samples are assigned if a section is active for only some."""

    EVEN = "even"
    """Round robin over its micro-batches, so that all ranks have equally many."""
    OWN = "own"
    """Each stays at its position in the batch, so that ranks may have different numbers."""
    INPUTS = "inputs"
    """The inputs of samples, one by one and wherever their samples are, so that all ranks have equally many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A model, its ranks, and which of its weights are trained."""

    model: str = figure("text", "a model of the catalogue, or a file")
    mode: str = figure(
        "text",
        "what is trained: train (all), forward, frozen, lora:16, layers:24..; rollout: it generates tokens",
        "train",
    )
    gpus: int = figure("count", "number of its own ranks; 0: the remaining ranks", 0)
    shares: str = text("the section whose ranks it runs on; default: its own")
    plan: Any = figure("one", "as in a plan file, except gpus, global_batch and train", {})
    active: float = figure("fraction", "fraction of the samples that it processes", 1.0, zero=True)
    deal: Deal = figure("choice", "how these are distributed: even, own, inputs", Deal.EVEN)
    per_sample: int = figure("count", "inputs per sample that it processes, e.g. images", 1)
    inputs: str = text("inputs of each of its samples where they differ, e.g. `1:0.7,16:0.3`; default: `per_sample`")
    prompt: int = figure("count", "for a rollout: tokens per prompt", 0)
    output: str = text("for a rollout: tokens generated for each, `1024` or `256:0.8,4096:0.2`")
    serving: Any = figure("one", "for a rollout: how passes are batched, e.g. max_batch, kv_memory, chunked", {})

    def __post_init__(self) -> None:
        if self.gpus and self.shares:
            hint = "leave out `gpus` or `shares`"
            raise ClusterError("a section has its own ranks, or those of another section, not both", hint=hint)
        taken = {"gpus", "global_batch", "train", "lengths", "steps"} & set(self.plan)
        if taken:
            hint = "`gpus` and `mode` are the section's, `batch` is that of all"
            raise ClusterError(f"`{sorted(taken)[0]}` does not belong in a section's plan", hint=hint)
        if self.makes_tokens:
            self._check_rollout()
        elif self.prompt or self.output or self.serving:
            raise ClusterError("`prompt`, `output` and `serving` apply only to a rollout", hint="mode: rollout")
        else:
            trained.parse(self.train)

    def _check_rollout(self) -> None:
        if not self.prompt or not self.output:
            raise ClusterError(
                "a rollout needs its numbers of prompt and output tokens", hint="prompt: 512, output: 1024"
            )
        if self.active < 1.0 or self.per_sample > 1 or self.counts_inputs:
            raise ClusterError(
                "a rollout generates a response for every sample",
                hint="leave out `active`, `per_sample`, `inputs` and `deal: inputs`",
            )
        taken = {"prefill", "decode", "batch"} & set(self.serving)
        if taken:
            raise ClusterError(f"`{sorted(taken)[0]}` is set by the section", hint="`prompt`, `output` and `batch`")

    @property
    def counts_inputs(self) -> bool:
        """Whether inputs, not samples, have places."""
        return self.deal == Deal.INPUTS or bool(self.inputs)

    @property
    def makes_tokens(self) -> bool:
        return self.mode == "rollout"

    @property
    def train(self) -> str:
        return "all" if self.mode == "train" else self.mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Border:
    """Activations from one section to another."""

    source: str
    target: str
    carries: Carries
    tokens: int
    """Tokens per sample; 0: those of the source section."""
    width: int
    """Values per token; 0: the hidden size or the vocabulary of the source section."""
    joint: bool = False
    """Both sections are one pipeline, through the stages of the one and then of the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Border:
    """A border as written in the file; `from` is not a name in Python."""

    to: str = figure("text", "the receiving section")
    carries: Carries = figure("choice", "hidden or logits", Carries.HIDDEN)
    tokens: int = figure("count", "tokens per sample; 0: those of the sending section", 0)
    width: int = figure("count", "values per token; 0: hidden size or vocabulary", 0)
    joint: bool = figure("flag", "both form one pipeline: micro-batches pass through the stages of both in turn", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sections:
    """The graph. Sections are in the order in which samples go through them."""

    name: str
    batch: int
    sections: dict[str, Section]
    borders: tuple[Border, ...]
    seed: int = 0
    """Seed of the samples that a section is active for."""
    gpus: int = 0

    def with_mix(self, mix: Mapping[str, float]) -> Sections:
        """The same with other fractions of active samples."""
        for name in mix:
            if name not in self.sections:
                raise UsageError(f"no section `{name}`", hint=f"sections: {', '.join(self.sections)}")
        changed = {n: replace(s, active=mix.get(n, s.active)) for n, s in self.sections.items()}
        return replace(self, sections=changed)

    def takes_gradients(self, name: str) -> bool:
        """Whether what comes after it sends gradients back."""
        return self.sections[name].mode != "forward" and any(
            b.source == name and b.carries == Carries.HIDDEN for b in self.borders
        )

    def has_head(self, name: str) -> bool:
        return not any(b.source == name and b.carries == Carries.HIDDEN for b in self.borders)

    def next_of(self, name: str) -> str:
        """The section that its pipeline continues with; empty: none."""
        return next((b.target for b in self.borders if b.joint and b.source == name), "")

    def pipeline(self, name: str) -> tuple[str, ...]:
        """The sections of its pipeline on its own ranks, in order."""
        then = {b.source: b.target for b in self.borders if b.joint and self.home(b.source) == self.home(b.target)}
        before = {target: source for source, target in then.items()}
        found = [name]
        while found[0] in before:
            found.insert(0, before[found[0]])
        while found[-1] in then:
            found.append(then[found[-1]])
        return tuple(found)

    def ordered(self, name: str) -> bool:
        """Whether a joint pipeline defines the order of its forwards and backwards."""
        return bool(self.next_of(name)) or len(self.pipeline(name)) > 1

    def home(self, name: str) -> str:
        """The section whose ranks it runs on."""
        return self.sections[name].shares or name

    def world(self, gpus: int) -> int:
        """Ranks of the job: as requested, otherwise from the file, otherwise those of its sections."""
        return gpus or self.gpus or sum(s.gpus for s in self.sections.values())

    def ranks(self, gpus: int) -> dict[str, range]:
        """Ranks of each section: consecutive, with the rest for the section that states none."""
        own = {n: s.gpus for n, s in self.sections.items() if not s.shares}
        open_ = [n for n, count in own.items() if not count]
        left = gpus - sum(own.values())
        if len(open_) > 1 or (open_ and left < 1) or (not open_ and left):
            told = ", ".join(f"{n} {count or 'the rest'}" for n, count in own.items())
            hint = "give `gpus` for all sections but one, and leave ranks for that one"
            raise UsageError(f"{gpus:,} ranks do not fit the sections: {told}", where=self.name, hint=hint)
        found, at = {}, 0
        for name, count in own.items():
            found[name] = range(at, at + (count or left))
            at += count or left
        for name, section in self.sections.items():
            if section.shares:
                found[name] = found[section.shares]
        return {name: found[name] for name in self.sections}


def open_sections(path: str | PathLike[str]) -> Sections:
    """A YAML file with `batch`, `sections` and `borders`. Files of models are in the same folder."""
    found = sections_of(read_mapping(path), str(path))
    beside = Path(path).parent
    near = {n: beside / s.model for n, s in found.sections.items() if s.model.endswith((".yaml", ".yml", ".json"))}
    named = {n: replace(s, model=str(near[n])) if n in near else s for n, s in found.sections.items()}
    return replace(found, sections=named)


def sections_of(given: Mapping[str, Any], where: str = "sections") -> Sections:
    with usage_errors(where):
        return _read(given, where)


def _read(given: Mapping[str, Any], where: str) -> Sections:
    known = ("name", "batch", "gpus", "seed", "sections", "borders")
    for key in given:
        if key not in known:
            raise ClusterError(f"unknown key `{key}`", where=where, hint=f"known: {', '.join(known)}")
    raw = given.get("sections")
    if not isinstance(raw, Mapping) or not raw:
        raise ClusterError("`sections` names no section", where=where, hint="sections: {teacher: {model: llama3-70b}}")
    sections = {str(n): read(Section, s, f"{where}: sections: {n}") for n, s in raw.items()}
    borders = given.get("borders", [])
    if not isinstance(borders, list):
        raise ClusterError("`borders` is not a list", where=where, hint="- {from: teacher, to: student}")
    found = Sections(
        name=str(given.get("name", "sections")),
        batch=_count(given, "batch", where),
        sections=sections,
        borders=tuple(_border(b, f"{where}: borders[{i}]") for i, b in enumerate(borders)),
        seed=_count(given, "seed", where, 0),
        gpus=_count(given, "gpus", where, 0),
    )
    _check(found, where)
    return found


def _count(given: Mapping[str, Any], key: str, where: str, usual: int | None = None) -> int:
    value = given.get(key, usual)
    if isinstance(value, bool) or not isinstance(value, int) or value < (usual is None):
        raise ClusterError(f"`{key}` is not a count", where=where, hint=f"{key}: 64")
    return value


def _border(given: Any, where: str) -> Border:
    if not isinstance(given, Mapping) or not isinstance(given.get("from"), str):
        raise ClusterError("key `from` is missing", where=where, hint="{from: teacher, to: student}")
    rest = read(_Border, {k: v for k, v in given.items() if k != "from"}, where)
    return Border(
        source=given["from"],
        target=rest.to,
        carries=rest.carries,
        tokens=rest.tokens,
        width=rest.width,
        joint=rest.joint,
    )


def _check(found: Sections, where: str) -> None:
    """Checks that names exist, that there is no cycle, and that gradients reach everything that is trained."""
    order = {name: i for i, name in enumerate(found.sections)}
    for name, section in found.sections.items():
        if section.shares and (section.shares not in order or found.sections[section.shares].shares):
            raise ClusterError(
                f"`shares: {section.shares}` does not name a section with its own ranks", where=f"{where}: {name}"
            )
    for border in found.borders:
        for name in (border.source, border.target):
            if name not in order:
                raise ClusterError(f"a border names `{name}`", where=where, hint=f"sections: {', '.join(order)}")
        _check_rollouts(found, border, where)
        _check_joint(found, border, where)
        if order[border.source] >= order[border.target] and border.carries != Carries.WEIGHTS:
            problem = f"a border goes back from `{border.source}` to `{border.target}`"
            hint = "write sections in the order in which samples go through them"
            raise ClusterError(problem, where=where, hint=hint)
        if found.sections[border.source].counts_inputs and found.sections[border.target].counts_inputs:
            problem = f"`{border.source}` and `{border.target}` both deal inputs of samples"
            raise ClusterError(problem, where=where, hint="only one section at a border can")
        reaches = trained.parse(
            "all" if found.sections[border.target].makes_tokens else found.sections[border.target].train
        )
        if (
            found.takes_gradients(border.source)
            and border.carries == Carries.HIDDEN
            and (reaches.kind == "forward" or reaches.first)
        ):
            problem = f"`{border.source}` gets no gradients from `{border.target}`, whose backward pass ends earlier"
            raise ClusterError(problem, where=where, hint=f"mode: forward for `{border.source}`")


def _check_joint(found: Sections, border: Border, where: str) -> None:
    """Checks that a pipeline continues with one section, and that its sections share ranks with no other."""
    if not border.joint:
        return
    if border.carries != Carries.HIDDEN:
        raise ClusterError(f"a joint pipeline carries `hidden`, not `{border.carries}`", where=where)
    if sum(b.source == border.source for b in found.borders if b.joint) > 1:
        hint = "one border with `joint: true`"
        raise ClusterError(f"the pipeline of `{border.source}` continues in several sections", where=where, hint=hint)
    joined = {name for b in found.borders if b.joint for name in (b.source, b.target)}
    homes = {name: [n for n in found.sections if found.home(n) == found.home(name)] for name in joined}
    if counted := [name for name in joined if found.sections[name].counts_inputs]:
        problem = f"in a joint pipeline samples stay together, so `{sorted(counted)[0]}` cannot deal inputs"
        raise ClusterError(problem, where=where, hint="leave out `inputs` and `deal: inputs`")
    shared = any(len(here) > 1 for here in homes.values())
    others = any(set(here) - joined for here in homes.values())
    if shared and (others or len({found.home(name) for name in joined}) > 1):
        problem = "sections of a joint pipeline must have separate ranks, or all the same ranks"
        raise ClusterError(problem, where=where, hint="`gpus` for each, or `shares` of one")
    if shared and sum(b.target == border.target for b in found.borders if b.joint) > 1:
        hint = "put one after another, or use separate ranks"
        raise ClusterError(f"several sections continue in `{border.target}` on the same ranks", where=where, hint=hint)


def _check_rollouts(found: Sections, border: Border, where: str) -> None:
    """Checks that a rollout gives tokens and takes weights, and that nothing else does."""
    one, other = found.sections[border.source], found.sections[border.target]
    gives, takes = border.carries == Carries.TOKENS, border.carries == Carries.WEIGHTS
    if one.makes_tokens != gives or other.makes_tokens != takes:
        hint = "a rollout sends `tokens` and receives `weights`"
        raise ClusterError(f"`{border.source}` to `{border.target}`: {border.carries}", where=where, hint=hint)
    if takes and one.mode != "train":
        raise ClusterError(f"`{border.source}` does not train all of its weights", where=where, hint="mode: train")


def mix_of(text: str, known: Collection[str], where: str) -> dict[str, float]:
    """`image:0.3,audio:0.1`: the fraction of the samples for which each section is active. `known`: all sections."""
    found = {}
    for part in line(text, where, "image:0.3,audio:0.1").split(",") if text else ():
        name, share = part.cut(":", last=True)
        if share is None:
            raise part.wrong(f"`{part.text}` is not a section and a fraction")
        found[name.choice(known, "section")] = share.fraction(zero=True)
    return found
