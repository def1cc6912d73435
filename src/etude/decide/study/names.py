"""Parameters of a study that no command has, found before the first point runs."""

from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import get_close_matches
from typing import TypeAlias

from etude.base.errors import UsageError
from etude.decide.study.points import Point
from etude.decide.study.spec import StudySpec

Options: TypeAlias = Callable[[Sequence[str]], tuple[str, Collection[str]]]
"""Words of a command -> its name, and the options that it has."""


def check_names(spec: StudySpec, points: Sequence[Point], options: Options) -> None:
    """Raises UsageError for the first option of a command of these points that the command does not have."""
    seen = set()
    for point in points:
        for words in point.task.commands:
            said = tuple(_options(words))
            if (words[:2], said) not in seen:
                seen.add((words[:2], said))
                name, known = options(words)
                for one in said if known else ():
                    if one not in known:
                        raise _unknown(spec, point, one, name, known)


def _options(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if word == "--":
            return
        if word.startswith("--"):
            yield word.partition("=")[0]


def _unknown(spec: StudySpec, point: Point, option: str, command: str, known: Collection[str]) -> UsageError:
    key = option.removeprefix("--").replace("-", "_")
    names = sorted(one.removeprefix("--").replace("-", "_") for one in known if one.startswith("--"))
    near = get_close_matches(key, names, 1)
    places = {
        "set or perturb": spec.given,
        "sweep": spec.space.names,
        "tune": spec.tune.names if spec.tune else (),
        f"variants: {point.variant}": spec.variants[point.variant],
        "seeds": ("seed",) if spec.seeds else (),
    }
    place = next(
        (place for place, keys in places.items() if key in keys), "workload" if "workload" in spec.text else "run"
    )
    meant = f"did you mean `{near[0]}`? " if near else ""
    return UsageError(
        f"`etude {command}` has no parameter `{key}`",
        where=f"{spec.where}: {place}",
        hint=f"{meant}etude {command} --help",
    )
