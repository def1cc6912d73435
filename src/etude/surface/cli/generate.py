from typing import Any

from etude.steps.asked import generating
from etude.steps.asked.job_out import generated_record
from etude.surface.cli import sections, serving
from etude.surface.verb import Verb


def meant(args: list[str]) -> tuple[str, list[str]]:
    """`generate MODEL --serve` is `generate serve MODEL`, `generate --sections FILE` is `generate sections FILE`."""
    return by_mode("generate", args)


def by_mode(word: str, args: list[str]) -> tuple[str, list[str]]:
    """The verb behind a word that an old flag says, and what is left of the words."""
    before = args[: args.index("--") if "--" in args else None]
    if any(arg.partition("=")[0] == "--sections" for arg in before):
        return f"{word} sections", args
    if "--serve" in before:
        at = args.index("--serve")
        return f"{word} serve", args[:at] + args[at + 1 :]
    return "", args


VERBS: tuple[Verb[Any, Any, Any], ...] = (
    Verb(
        "generate",
        generating.Generate,
        generating.generate_inputs,
        generating.run_generate,
        record=generated_record,
        reads=generating.readable,
        says=generating.generate_assumptions,
    ),
    serving.GENERATE,
    sections.GENERATE,
)
