"""The file of a study, read and checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, log
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import read_mapping
from etude.decide.study.expressions import calls_in, is_condition, names_in
from etude.decide.study.own import OwnInputs, with_own
from etude.decide.study.space import MOST_POINTS, Space
from etude.decide.study.stats import INTERVALS, TESTS
from etude.decide.study.templates import named_in

BASELINE: Final = "baseline"
BETTER: Final = ("lower", "higher")
KINDS: Final = ("exact", "shape", "identity")
CLAIMS: Final = ("gain", "share", "amount")
RESERVED: Final = ("flags", "machine", "seed", "gain", "margin", "variant", "error", "commands")
"""Names that a study gives a meaning of its own."""

KEYS: Final = {
    "title": "what is compared, in one line",
    "paper": "the published system",
    "group": "its capability group, C1 to C13",
    "mechanisms": "mechanisms that it uses, [M2, M3]",
    "status": "`whole`, or `partial: ` and what is missing",
    "grade": "`faithful`, or `thin: ` and why",
    "ring": "2 where the published system is of a neighbouring field, else 1",
    "about": "what is compared and why, in a few sentences",
    "published": "figures that its authors report",
    "claims": "those figures as data: [{figure, published, ours, kind, conditions, why}]",
    "not_shown": "what a trace cannot show",
    "workload": "one command without `etude`, without the machine: predict llama3-8b --gpus 64",
    "run": "several commands instead, by name; {name} is a parameter, {flags} all the others",
    "machine": "a system of the catalogue, a file, or a description",
    "files": "small input files of commands, by name: text, or YAML",
    "set": "parameters of every point",
    "perturb": "parameters of every point that disturb it: jitter, slow_rank, ...",
    "baseline": "parameters of the baseline",
    "variants": "parameters of each variant, by name",
    "sweep": "axes with their values, or a list of points",
    "when": "expression: points for which it is false are left out",
    "sample": "number of points of the sweep to draw, with seed 0",
    "seeds": "number of seeds, or a list of them; each is the parameter `seed`",
    "metrics": "values read from the output, by name: an expression, or {value, better, unit}",
    "tune": "axes over which the baseline is tuned first, by the first metric",
    "tune_all": "also tune every variant on the same grid",
    "predict": "the registered sign: {variant: lower}, of the first metric",
    "stats": "test of paired differences: sign or wilcoxon",
    "interval": "t or bootstrap",
    "slots": "whose place --job takes: {job: name of a command}",
    "checks": "conditions that must hold: [{name, kind, that, margin, when}]",
    "neutral": "parameters that switch the mechanism off",
    "quick": "keys of this file that `--quick` replaces",
}
FACTS: Final = tuple(key for key in list(KEYS)[: list(KEYS).index("workload")] if key != "claims")
"""What a reader should know, and no run depends on."""


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    value: str
    """An expression over the answer of the commands."""
    better: str = ""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class StudyCheck:
    name: str
    kind: str
    """`exact`, `shape` (with a margin), or `identity`: what the inputs alone decide."""
    that: str
    margin: float = 0.0
    when: str = ""
    """Where it applies; elsewhere it is not asked."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A published figure, and the expression for what the study finds."""

    figure: str
    published: tuple[float, float] | None
    """Lowest and highest; None where the claim is a statement, which `ours` says to be true or not."""
    ours: str
    kind: str = "gain"
    """`gain`: a ratio in which 1 is no effect; `share`: a part in which 0 is none; `amount`: any other figure."""
    conditions: str = ""
    unit: str = ""
    better: str = "higher"
    why: str = ""
    """Why ours differs, where it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySpec:
    """A study as it was written, with nothing left out."""

    name: str
    where: str
    folder: Path
    """What its files are relative to."""
    text: Mapping[str, Any]
    """The file itself, to be written out again."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    commands: Mapping[str, str]
    machine: Any = ""
    files: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of every point: `set`, `perturb`."""
    variants: Mapping[str, Mapping[str, Any]]
    """Parameters by name, the baseline first."""
    space: Space
    seeds: tuple[int, ...] = ()
    """None: nothing is drawn."""
    metrics: tuple[Metric, ...]
    tune: Space | None = None
    tune_all: bool = False
    predict: Mapping[str, str] = field(default_factory=dict)
    stats: str = "sign"
    interval: str = "t"
    checks: tuple[StudyCheck, ...] = ()
    claims: tuple[Claim, ...] = ()
    own: tuple[str, ...] = ()
    """What is the user's and not the file's: `job`, `system`, names of values."""
    changed: tuple[str, ...] = ()
    """The same in words."""
    neutral: Mapping[str, Any] = field(default_factory=dict)
    mentioned: frozenset[str] = frozenset()
    """Parameters that values of others name, whether the mechanism is on or off."""
    trusted: bool = False
    """Whether it may run programs and code, and write outside its folder."""

    @property
    def baseline(self) -> str:
        return next(iter(self.variants))


def read_spec(
    path: str | PathLike[str], *, quick: bool = False, neutral: bool = False, own: OwnInputs | None = None
) -> StudySpec:
    """The study in a YAML or JSON file. `quick`: with its own smaller figures; `neutral`: the mechanism off; `own`: the
    user's job, system or values in the place of the file's."""
    file = Path(path)
    given = read_mapping(file)
    where, folder = fspath(file), file.resolve().parent
    spec = spec_of(given, file.stem, where, folder, quick=quick, neutral=neutral)
    if own is None or not own:
        return spec
    less = {**given, **_mapping(given, "quick", where)} if quick else given
    fitted, changed = with_own({k: v for k, v in less.items() if k != "quick"}, own, where)
    return replace(
        spec_of(fitted, file.stem, where, folder, neutral=neutral, as_written=False), own=own.names, changed=changed
    )


def spec_of(
    given: Mapping[str, Any],
    name: str,
    where: str,
    folder: Path,
    *,
    quick: bool = False,
    neutral: bool = False,
    as_written: bool = True,
) -> StudySpec:
    """`as_written`: checks may only name what is there; where a user's own takes its place they may not apply."""
    known(given, KEYS, where)
    whole = dict(given)
    less = _mapping(given, "quick", where)
    known(less, [k for k in KEYS if k != "quick"], f"{where}: quick")
    used = {**whole, **less} if quick else whole
    variants = _variants(used, where)
    switched = _mapping(used, "neutral", where)
    shared = {**_mapping(used, "set", where), **_mapping(used, "perturb", where)}
    mentioned = frozenset(named_in([shared, *variants.values()], where))
    if neutral:
        if not switched:
            raise UsageError("does not define how its mechanism is switched off", where=where, hint="neutral: {...}")
        first = next(iter(variants))
        variants = {n: dict(p) if n == first else {**p, **switched} for n, p in variants.items()}
    space = _space(used, where)
    spec = StudySpec(
        name=name,
        where=where,
        folder=folder,
        text=whole,
        facts={k: used[k] for k in FACTS if k in used},
        commands=_commands(used, where),
        machine=used.get("machine", ""),
        files=_mapping(used, "files", where),
        given=shared,
        variants=variants,
        space=space,
        seeds=_seeds(used, where),
        metrics=_metrics(used, where),
        tune=Space(axes=_mapping(used, "tune", where)) if used.get("tune") else None,
        tune_all=bool(used.get("tune_all", False)),
        predict=_signs(used, variants, where),
        stats=_choice(used, "stats", "sign", TESTS, where),
        interval=_choice(used, "interval", "t", INTERVALS, where),
        checks=_checks(used, where),
        claims=_claims(used, where),
        neutral=switched,
        mentioned=mentioned,
    )
    _consistent(spec)
    if as_written:
        _answerable(spec)
    return spec


def known(given: Mapping[str, Any], keys: Any, where: str) -> None:
    """Refuses a key that is not one of these."""
    for key in given:
        if key not in keys:
            raise UsageError(f"unknown key `{key}`", where=where, hint=f"known: {', '.join(keys)}")


def _mapping(given: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    found = given.get(key)
    if found is None:
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(k, str) for k in found):
        raise UsageError("expected names and values", where=f"{where}: {key}", hint=KEYS[key])
    return dict(found)


def _choice(given: Mapping[str, Any], key: str, usual: str, of: Any, where: str) -> str:
    found = given.get(key, usual)
    if found not in of:
        raise UsageError(f"unknown {key} `{found}`", where=where, hint=f"known: {', '.join(of)}")
    return str(found)


def _commands(given: Mapping[str, Any], where: str) -> dict[str, str]:
    workload, run = given.get("workload"), given.get("run")
    found: dict[str, Any]
    if (workload is None) == (run is None):
        raise UsageError("one of `workload` and `run` is needed", where=where, hint="workload: predict llama3-8b")
    if workload is not None:
        if not isinstance(workload, str):
            raise UsageError("expected a command", where=f"{where}: workload", hint=KEYS["workload"])
        on = " --system {machine}" if given.get("machine") else ""
        flags = "" if "{flags}" in workload else " {flags}"
        found = {"workload": f"{workload}{flags}{on} --json"}
    elif isinstance(run, Mapping):
        found = {str(k): v for k, v in run.items()}
    else:
        found = {f"command{i + 1}": v for i, v in enumerate(run if isinstance(run, Sequence) else [])}
    if not found or not all(isinstance(v, str) and v.strip() for v in found.values()):
        raise UsageError("expected commands", where=f"{where}: run", hint=KEYS["run"])
    found = {name: " ".join(text.split()).removeprefix("etude ") for name, text in found.items()}
    for name, text in found.items():
        if not name.isidentifier():
            raise UsageError(f"`{name}` is not a name", where=f"{where}: run", hint="letters, digits and _")
        if text.split()[0] == "study":
            raise UsageError("a study cannot run studies", where=f"{where}: run: {name}")
    return found


def _variants(given: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    base = _mapping(given, "baseline", where)
    label = base.pop("name", BASELINE)
    found = {str(label): base}
    for name, parameters in _mapping(given, "variants", where).items():
        if not isinstance(parameters, Mapping) or not all(isinstance(k, str) for k in parameters):
            raise UsageError("expected parameters and values", where=f"{where}: variants: {name}")
        if name in found:
            raise UsageError(f"`{name}` is also the name of the baseline", where=f"{where}: variants")
        found[name] = {**base, **parameters}  # a variant is the baseline with something changed
    return found


def _space(given: Mapping[str, Any], where: str) -> Space:
    sweep, when, sample = given.get("sweep") or {}, given.get("when", ""), given.get("sample", 0)
    if not isinstance(sample, int) or isinstance(sample, bool) or sample < 0:
        raise UsageError(f"`{sample}` is not a number of points", where=f"{where}: sample")
    if not isinstance(when, str):
        raise UsageError("expected an expression", where=f"{where}: when", hint="when: tp * pp <= 8")
    try:
        if isinstance(sweep, Mapping):
            axes = {str(k): _axis(v, f"{where}: sweep: {k}") for k, v in sweep.items()}
            return Space(axes=axes, when=when, sample=sample)
        if isinstance(sweep, list) and all(isinstance(row, Mapping) for row in sweep):
            return Space(rows=sweep, when=when, sample=sample)
    except UsageError as problem:
        place = problem.where if problem.where.startswith(where) else f"{where}: {problem.where}"
        raise UsageError(problem.problem, where=place, hint=problem.hint) from None
    raise UsageError("expected axes, or a list of points", where=f"{where}: sweep", hint=KEYS["sweep"])


def _axis(given: Any, where: str) -> list[Any]:
    """A list, or {from, to, step} or {from, to, times}."""
    if isinstance(given, list) and given:
        return given
    if isinstance(given, Mapping):
        known(given, ("from", "to", "step", "times"), where)
        low, high, step, times = (given.get(k, 0) for k in ("from", "to", "step", "times"))
        ends = (low, high, step, times)
        numbers = all(isinstance(v, int | float) and isfinite(v) for v in ends) and low <= high
        if numbers and ((step > 0 and not times) or (times > 1 and low > 0 and not step)):
            if (high - low) / step > MOST_POINTS if step else log(high / low) / log(times) > MOST_POINTS:
                raise UsageError(f"more than {MOST_POINTS:,} values", where=where, hint="a larger step")
            found = [low]
            while (after := found[-1] * times if times else found[-1] + step) <= high:
                found.append(after)
            return found
    raise UsageError("expected a list of values", where=where, hint="[1, 2, 4] or {from: 1, to: 64, times: 2}")


def _seeds(given: Mapping[str, Any], where: str) -> tuple[int, ...]:
    found = given.get("seeds", ())
    if isinstance(found, int) and not isinstance(found, bool) and found > 0:
        if found > MOST_POINTS:
            raise UsageError(f"{found:,} seeds", where=f"{where}: seeds", hint=f"at most {MOST_POINTS:,}")
        return tuple(range(found))
    if isinstance(found, list | tuple) and all(isinstance(s, int) for s in found) and len(set(found)) == len(found):
        return tuple(found)
    raise UsageError("expected a number of seeds, or a list of different ones", where=f"{where}: seeds")


def _metrics(given: Mapping[str, Any], where: str) -> tuple[Metric, ...]:
    found = []
    for name, value in _mapping(given, "metrics", where).items():
        at = f"{where}: metrics: {name}"
        about = value if isinstance(value, Mapping) else {"value": value}
        known(about, ("value", "better", "unit"), at)
        better = about.get("better", "")
        if better not in ("", *BETTER):
            raise UsageError(f"unknown `{better}`", where=at, hint="better: lower or higher")
        if not name.isidentifier() or name in RESERVED:
            raise UsageError(f"`{name}` is not a valid name for a metric", where=f"{where}: metrics")
        names_in(str(about.get("value", "")), at)
        found.append(Metric(name, str(about["value"]), better, str(about.get("unit", ""))))
    if not found:
        raise UsageError("no metric is given", where=where, hint="metrics: {step: step_time_ns}")
    return tuple(found)


def _signs(given: Mapping[str, Any], variants: Mapping[str, Any], where: str) -> dict[str, str]:
    found = {k: str(v) for k, v in _mapping(given, "predict", where).items()}
    for name, sign in found.items():
        if name not in list(variants)[1:]:
            raise UsageError(f"no variant `{name}`", where=f"{where}: predict", hint=", ".join(list(variants)[1:]))
        if sign not in BETTER:
            raise UsageError(f"unknown sign `{sign}`", where=f"{where}: predict: {name}", hint="lower or higher")
    return found


def _checks(given: Mapping[str, Any], where: str) -> tuple[StudyCheck, ...]:
    found: list[StudyCheck] = []
    listed = given.get("checks") or []
    if not isinstance(listed, list):
        raise UsageError("expected a list", where=f"{where}: checks", hint=KEYS["checks"])
    for i, one in enumerate(listed):
        at = f"{where}: checks[{i}]"
        if not isinstance(one, Mapping):
            raise UsageError("expected keys and values", where=at, hint=KEYS["checks"])
        known(one, ("name", "kind", "that", "margin", "when"), at)
        for key in ("name", "kind", "that"):
            if not isinstance(one.get(key), str):
                raise UsageError(f"key `{key}` is missing or is not a text", where=at, hint=KEYS["checks"])
        if one["kind"] not in KINDS:
            raise UsageError(f"unknown kind `{one['kind']}`", where=at, hint="exact, shape or identity")
        states = "margin" in names_in(one["that"], at)
        if one["kind"] == "shape" and ("margin" not in one or not states):
            raise UsageError("a shape needs a margin, and its expression must use it", where=at, hint="margin: 0.05")
        if one["kind"] != "shape" and ("margin" in one or states):
            raise UsageError(f"an {one['kind']} check cannot have a margin", where=at, hint="kind: shape")
        for key in ("that", "when"):
            if one.get(key) and not is_condition(_text(one[key], at)):
                hint = "a comparison, all(...), rising(...), falling(...), close(...)"
                raise UsageError(f"`{one[key]}` is not a condition", where=at, hint=hint)
        if any(c.name == one["name"] for c in found):
            raise UsageError(f"two checks have the name `{one['name']}`", where=at)
        margin, when = float(one.get("margin", 0)), str(one.get("when", ""))
        found.append(StudyCheck(one["name"], one["kind"], one["that"], margin, when))
    return tuple(found)


def _text(given: Any, at: str) -> str:
    """An expression, checked by its names."""
    names_in(str(given), at)
    return str(given)


def _claims(given: Mapping[str, Any], where: str) -> tuple[Claim, ...]:
    listed = given.get("claims") or []
    if not isinstance(listed, list):
        raise UsageError("expected a list", where=f"{where}: claims", hint=KEYS["claims"])
    found = []
    for i, one in enumerate(listed):
        at = f"{where}: claims[{i}]"
        if not isinstance(one, Mapping) or not isinstance(one.get("figure"), str) or "ours" not in one:
            raise UsageError("expected `figure`, `published` and `ours`", where=at, hint=KEYS["claims"])
        known(one, ("figure", "published", "ours", "kind", "conditions", "unit", "better", "why"), at)
        kind = _choice(one, "kind", "gain", CLAIMS, at)
        better = _choice(one, "better", "higher", BETTER, at)
        ends = one.get("published")
        ends = ends if isinstance(ends, list) else [ends, ends]
        numbers = len(ends) == 2 and all(isinstance(v, int | float) and isfinite(v) for v in ends)
        if not numbers and ends != [None, None]:
            raise UsageError("`published` is not a number or two", where=at, hint="published: 1.35, or [1.2, 1.35]")
        ours, published = _text(one["ours"], at), (float(min(ends)), float(max(ends))) if numbers else None
        if published is None and not is_condition(ours):
            raise UsageError("without a published figure, `ours` is a condition", where=at)
        if kind != "share" and published is not None and published[0] <= 0:
            raise UsageError(f"a published {kind} is above 0", where=at, hint="kind: share")
        texts = (str(one.get("conditions", "")), str(one.get("unit", "")))
        found.append(Claim(one["figure"], published, ours, kind, *texts, better, str(one.get("why", ""))))
    return tuple(found)


def _answerable(spec: StudySpec) -> None:
    """Variants, axes and metrics that checks and claims name are there, before any point runs."""
    metrics = {metric.name for metric in spec.metrics}
    for kind, text in [
        *((f"check `{c.name}`", t) for c in spec.checks for t in (c.that, c.when) if t),
        *((f"claim `{c.figure}`", c.ours) for c in spec.claims),
    ]:
        where = f"{spec.where}: {kind}"
        for name, words, keys in calls_in(text, {*metrics, "gain"}):
            variant = words[0] if words else keys.get("variant")
            if variant is not None and variant not in spec.variants:
                raise UsageError(f"no variant `{variant}`", where=where, hint=", ".join(spec.variants))
            if name == "gain" and keys.get("metric") is not None and keys["metric"] not in metrics:
                raise UsageError(f"no metric `{keys['metric']}`", where=where, hint=", ".join(sorted(metrics)))
            axes = [key for key in keys if key not in ("variant", *(("metric",) if name == "gain" else ()))]
            for axis in axes:
                if axis not in spec.space.names:
                    raise UsageError(f"no axis `{axis}`", where=where, hint=", ".join(spec.space.names) or "no sweep")


def _consistent(spec: StudySpec) -> None:
    """A parameter has one origin, so that there is no precedence to remember."""
    origins = {
        "set or perturb": set(spec.given),
        "sweep": set(spec.space.names),
        "baseline or variants": set().union(*map(set, spec.variants.values())) - set(spec.neutral),
    }
    if spec.tune:
        origins["tune"] = set(spec.tune.names)
    seen: dict[str, str] = {}
    for origin, names in origins.items():
        for name in sorted(names):
            if name in seen:
                raise UsageError(f"`{name}` is given by {seen[name]} and by {origin}", where=spec.where)
            if not name.isidentifier() or name in RESERVED:
                raise UsageError(f"`{name}` is not a valid name for a parameter", where=spec.where)
            seen[name] = origin
