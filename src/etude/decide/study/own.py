"""A user's own job, system or values in the place of those of a study.

    etude study run zipccl --job my_run/ --system mine.yaml --set gbit=200 --set model=mixtral-8x7b

A job takes the place of the command that generates it, a system that of `machine` or of every `--system`; axes that
nothing names any more are left out. Checks that then have no answer are not asked.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from etude.base.errors import UsageError
from etude.decide.study.templates import joined, named, named_in, split

GENERATES = "generate"
MICRO = "micro"
TAKES_MODEL = (GENERATES, "predict", "plan", "serve")


@dataclass(frozen=True, slots=True)
class OwnInputs:
    """What a user puts into a study."""

    job: str = ""
    system: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """What is the user's: `job`, `system` and names of values."""
        return (*(["job"] if self.job else []), *(["system"] if self.system else []), *self.values)


def with_own(given: Mapping[str, Any], own: OwnInputs, where: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The study with what is the user's own in it, and what was changed, in words."""
    changed: list[str] = []
    used = dict(given)
    for name, value in own.values.items():
        changed.append(_put_value(used, name, value, where))
    if own.job:
        changed.append(_put_job(used, own.job, where))
    if own.system:
        changed.append(_put_system(used, own.system, where))
    changed += _drop_axes(used, where)
    return used, tuple(changed)


def _put_value(used: dict[str, Any], name: str, value: Any, where: str) -> str:
    many = value if isinstance(value, list) else [value]
    sweep: Any = used.get("sweep") or {}
    if isinstance(sweep, Mapping) and name in sweep:
        used["sweep"] = {**sweep, name: many}
        return f"{name} = {_said(many)}"
    if isinstance(sweep, list) and name in sweep[0]:
        rows = [{**row, name: one} for row in sweep for one in many]
        used["sweep"] = [row for i, row in enumerate(rows) if row not in rows[:i]]
        return f"{name} = {_said(many)}"
    if name == "seeds":
        used["seeds"] = value
        return f"seeds = {_said(many)}"
    if len(many) > 1:
        raise UsageError(f"`{name}` is no axis of the sweep and takes one value", where="--set", hint=_known(used))
    for key in ("set", "perturb"):
        if isinstance(used.get(key), Mapping) and name in used[key]:
            used[key] = {**used[key], name: value}
            return f"{name} = {value}"
    base = used.get("baseline") or {}
    if name in base and name != "name":
        used["baseline"] = {**base, name: value}
        same = {n: p for n, p in (used.get("variants") or {}).items() if p.get(name) == base[name]}
        used["variants"] = {**used["variants"], **{n: {**p, name: value} for n, p in same.items()}}
        return f"{name} = {value} in the baseline"
    if name == "model":
        return _put_model(used, str(value), where)
    if name == "group":
        return _put_group(used, str(value), where)
    raise UsageError(f"the study has no value `{name}`", where="--set", hint=_known(used))


def _known(used: Mapping[str, Any]) -> str:
    sweep: Any = used.get("sweep") or {}
    axes = list(sweep) if isinstance(sweep, Mapping) else list(sweep[0]) if sweep else []
    shared = [name for key in ("set", "perturb") for name in used.get(key) or {}]
    base = [name for name in used.get("baseline") or {} if name != "name"]
    words = [name for name, found in (("model", list(_models(used))), ("group", _groups(used))) if found]
    return f"it has {', '.join(dict.fromkeys([*axes, *shared, *base, *words])) or 'none'}"


def _said(many: list[Any]) -> str:
    return ", ".join(map(str, many))


def _models(used: Mapping[str, Any]) -> Iterator[str]:
    """Models that commands name: the first word of those that take one."""
    for text in _commands(used).values():
        words = split(text.removeprefix("etude "), "study")
        named_one = words[1:2] and words[1] != MICRO and not words[1].startswith(("-", "{"))
        if words and words[0] in TAKES_MODEL and named_one and "/" not in words[1]:
            yield words[1]


def _put_model(used: dict[str, Any], model: str, where: str) -> str:
    found = list(dict.fromkeys(_models(used)))
    if len(found) != 1:
        what = f"several models: {', '.join(found)}" if found else "no model by its name"
        raise UsageError(f"its commands name {what}", where="--set model", hint="change a copy: etude study show")
    _put_commands(used, {n: _with_words(t, {found[0]: model}, where) for n, t in _commands(used).items()})
    return f"model {model} in place of {found[0]}"


_GROUP = re.compile(r"\bgroup=([\w.,*-]+)")


def _groups(used: Mapping[str, Any]) -> list[str]:
    """Groups that edits in commands select by name."""
    return list(dict.fromkeys(one for text in _commands(used).values() for one in _GROUP.findall(text)))


def _put_group(used: dict[str, Any], group: str, where: str) -> str:
    found = _groups(used)
    if len(found) != 1:
        what = f"several groups: {', '.join(found)}" if found else "no group"
        raise UsageError(f"its commands select {what}", where="--set group", hint="change a copy: etude study show")
    _put_commands(used, {n: _GROUP.sub(f"group={group}", text) for n, text in _commands(used).items()})
    return f"group {group} in place of {found[0]}"


def _commands(used: Mapping[str, Any]) -> dict[str, str]:
    run = used.get("run")
    if isinstance(run, Mapping):
        return {str(k): str(v) for k, v in run.items()}
    if isinstance(run, list):
        return {f"command{i + 1}": str(v) for i, v in enumerate(run)}
    return {"workload": str(used.get("workload", ""))}


def _put_commands(used: dict[str, Any], commands: Mapping[str, str]) -> None:
    if "run" in used:
        used["run"] = dict(commands)
    else:
        used["workload"] = commands["workload"]


def _with_words(text: str, words: Mapping[str, str], where: str) -> str:
    """A command with some of its words replaced; a path below one as well."""
    found = []
    for word in split(text, where):
        head, slash, rest = word.partition("/")
        new = words.get(word) or (words[head] + slash + rest if slash and head in words else word)
        found.append(new)
    return joined(found)


def _with_words_inside(value: Any, words: Mapping[str, str], where: str) -> Any:
    """The same in every text of several words."""
    if isinstance(value, Mapping):
        return {key: _with_words_inside(one, words, where) for key, one in value.items()}
    if isinstance(value, list):
        return [words.get(one, one) if isinstance(one, str) else one for one in value]
    if isinstance(value, str) and " " in value and not set(words).isdisjoint(split(value, where)):
        return _with_words(value, words, where)
    return value


def _made_by(words: list[str]) -> str:
    """What a command generates."""
    return words[words.index("-o") + 1] if words[0] == GENERATES and "-o" in words[:-1] else ""


def _put_job(used: dict[str, Any], job: str, where: str) -> str:
    path = Path(job).resolve()
    if not path.exists():
        raise UsageError("no such file or folder", where=f"--job {job}")
    commands = {name: text.removeprefix("etude ") for name, text in _commands(used).items()}
    makes = {name: out for name, text in commands.items() if (out := _made_by(split(text, where)))}
    asked = (used.get("slots") or {}).get("job")
    others = sorted({text.split()[0] for text in commands.values()} & set(TAKES_MODEL[1:]))
    if asked is not None:
        makes = {name: out for name, out in makes.items() if name == asked}
    elif others:
        makes = {}
    if len(makes) != 1:
        why = f"generates {len(makes)} jobs" if makes else "has no one job that another could replace"
        hint = "`slots: {job: NAME}` names the command whose place it takes; --set model=NAME is another model"
        raise UsageError(f"{where} {why}", where=f"--job {job}", hint=hint)
    (name, out), text = next(iter(makes.items())), ""
    text = commands.pop(name)
    place = {out: str(path)}
    _put_commands(used, {n: _with_words(t, place, where) for n, t in commands.items()})
    for key in ("set", "baseline", "variants"):  # commands may be parameters
        if used.get(key):
            used[key] = _with_words_inside(used[key], place, where)
    return f"job {job} in place of `{' '.join(text.split())}`"


def _put_system(used: dict[str, Any], system: str, where: str) -> str:
    from etude.machine import system_names

    path = Path(system)
    value = str(path.resolve()) if path.exists() else system
    if not path.exists() and value.partition("@")[0] not in system_names():
        raise UsageError(f"no system `{system}`", where="--system", hint="a file, or a name of `etude systems`")
    commands = _commands(used)
    texts = {name: _with_system(text, value, where) for name, text in commands.items()}
    if used.get("machine"):
        used["machine"] = value
    elif texts == commands:
        raise UsageError(f"no command of {where} takes a system", where=f"--system {system}")
    _put_commands(used, texts)
    return f"system {system} in place of its own"


def _with_system(text: str, value: str, where: str) -> str:
    words = split(text, where)
    places = [i + 1 for i, word in enumerate(words[:-1]) if word == "--system" and words[i + 1] != "{machine}"]
    if not places:
        return text
    for i in places:
        words[i] = value
    return joined(words)


def _is_named(file: str, text: str) -> bool:
    """Whether a text names a file, or a folder that it is in."""
    return any(str(path) in text for path in (PurePosixPath(file), *PurePosixPath(file).parents[:-1]))


def _drop_axes(used: dict[str, Any], where: str) -> list[str]:
    """Axes that only what was replaced had named are left out, and files that no command needs."""
    commands = _commands(used)
    words = [word for text in commands.values() for word in split(text, where)]
    files = used.get("files") or {}
    values = [str(used.get(key)) for key in ("set", "perturb", "baseline", "variants", "sweep")]
    texts = [*words, *values, *map(str, files.values())]
    kept = {name: value for name, value in files.items() if any(_is_named(name, text) for text in texts)}
    used["files"] = kept
    elsewhere = set().union(
        *(named(text, where) for text in commands.values()),
        named_in(kept, where),
        named_in(used.get("machine", ""), where),
        named_in([used.get(k) or {} for k in ("set", "perturb", "baseline", "variants")], where),
    )
    sweep: Any = used.get("sweep") or {}
    if "flags" in elsewhere or "workload" in used:
        return []
    for variant in (used.get("baseline") or {}, *(used.get("variants") or {}).values()):
        for name in variant:
            if name not in elsewhere and name != "name":
                why = f"variants differ in `{name}`, which only that command or system had used"
                raise UsageError(f"it cannot take the place of the study's own: {why}", where=where)
    changed: list[str] = []
    gone: list[str] = []
    for key in ("set", "perturb"):
        idle = [name for name in used.get(key) or {} if name not in elsewhere]
        if idle:
            used[key] = {name: v for name, v in used[key].items() if name not in idle}
            changed.append(f"without {', '.join(idle)}, which nothing needs now")
    if isinstance(sweep, Mapping):
        gone = [name for name in sweep if name not in elsewhere]
        used["sweep"] = {name: v for name, v in sweep.items() if name not in gone}
    elif sweep:
        gone = [name for name in sweep[0] if name not in elsewhere]
        rows = [{name: v for name, v in row.items() if name not in gone} for row in sweep]
        used["sweep"] = [row for i, row in enumerate(rows) if row and row not in rows[:i]]
    return [*changed, *(f"without the axis {name}, which nothing needs now" for name in gone)]
