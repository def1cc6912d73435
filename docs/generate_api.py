"""docs/api.md: the public names of `etude`, from their signatures and docstrings."""

import inspect
import re
from importlib import import_module

import etude
from etude.faces import homes

GROUPS = {
    "Nouns": "Job Run Trace Timing System Plan",
    "Open": "open open_run open_system open_model open_feeder feeder",
    "Look": "check diff summary query fold expand report timeline",
    "Make and change": "collect link convert generate micro learn synthesise edit anonymise",
    "Run": "simulate predict plan search serve fleet federate replay study energy",
    "Analyse": "breakdown idle kernels operators collectives critical_path stragglers memory roofline metrics steps "
    "compare what_if",
    "Errors": "EtudeError TraceError",
}

ROOMS = {
    "etude.analyse.*": "more of each analysis: names in the `__all__` of its file ([analysis](analyse/index.md))",
    "etude.archive": "`Lake`: an archive of many runs ([archive](archive.md))",
    "etude.astra": "ASTRA-sim's results from its own files ([as ASTRA-sim](astra.md))",
    "etude.collect.torch": "`trace`, `traced`: recording from inside a script ([collect](collect.md))",
    "etude.cost.*": "prices of operators, collectives, tiers, energy ([costs](costs.md))",
    "etude.fleet": "`Recovery`, `simulate_fleet` ([fleet](fleet.md))",
    "etude.generate": "`Plan`, `Generated`, `MicroOptions` ([generate](generate.md))",
    "etude.generate.directives.step": "`Select`, for rewrites of a step ([directives](directives.md))",
    "etude.generate.maps": "`Domain` ([maps](maps.md))",
    "etude.generate.schedules": "pipeline schedules ([schedules](schedules.md))",
    "etude.generate.serving": "`Serving`, `serve` ([serving](serving.md))",
    "etude.ingest.collectives": "`communications(host, device)` ([communications](communications.md))",
    "etude.ingest.requests": "`measured_requests`: requests of engines and their clients ([requests](analyse/requests.md))",
    "etude.link.recording": "`Recording`, for readers of your own ([readers](readers.md))",
    "etude.machine": "devices, systems ([machines](machines.md))",
    "etude.machine.infragraph.files": "InfraGraph files ([network](network.md))",
    "etude.machine.topology": "`Wire`, `switch` and other graphs ([network](network.md))",
    "etude.model.card": "`Card` ([cards](cards.md))",
    "etude.model.schema": "enums of the data model ([data model](data-model.md))",
    "etude.notebook": "tables in notebooks ([notebooks](notebooks.md))",
    "etude.predict": "`predict_serving` ([serving](serving.md))",
    "etude.search.placement": "`best_placement` ([placement](placement.md))",
    "etude.serve": "`Engine`, `request_stream`, `summary` ([serve](serve.md))",
    "etude.simulate": "`Options`, `Overlap`, `RemoteMemory`, `Draw` ([simulate](simulate.md))",
    "etude.simulate.faults": "faults in the middle of a run ([simulate](simulate.md))",
    "etude.simulate.flows": "messages of collectives as a table ([network](network.md))",
    "etude.simulate.lower": "a job made ready for the engine ([simulate](simulate.md))",
    "etude.simulate.networks": "a network by itself ([network](network.md))",
    "etude.simulate.run": "`start`: an engine whose clock can be stopped ([simulate](simulate.md))",
    "etude.simulate.together": "`simulate_jobs`: several jobs on one system ([simulate](simulate.md))",
    "etude.store.cards": "cards of jobs ([cards](cards.md))",
    "etude.study": "`Space`, `evaluate` ([studies](studies.md))",
    "etude.study.on_ray": "`spread`: work on a Ray cluster ([studies](studies.md))",
    "etude.synth": "`MakeOptions`, `learn`, `make` ([synthesis](synthesis.md))",
    "etude.transform.edits": "`Edit`, `apply_edits` ([edits](edits.md))",
    "etude.transform": "`AnonymiseOptions`, `with_device_times` ([anonymise](anonymise.md))",
}
"""Rooms whose face is public, too: hooks for extensions, options, and what pages of the docs are about."""

HEAD = """# Python API

<!-- made by docs/generate.py from the docstrings: change these, then run `make docs` -->

`import etude` is light; each name is loaded when it is first used. These names are what Etude promises: they change only with a line in the changelog. In the examples `job` is a `Job` and `run` a `Run`.

"""

FOOT = """
## Rooms with a public face

Names that a room shows in its `__init__` are public for the rooms below. Everything else below `etude.` is private by convention and may change with any release.

| room | what for |
|---|---|
"""


def target(name: str) -> object:
    module, there = homes("etude")[name]
    return getattr(import_module(module), there)


def parts(name: str) -> tuple[str, str, str]:
    """(signature, one line, example) of a public name."""
    thing = target(name)
    doc = inspect.getdoc(thing) or ""
    first = " ".join(doc.partition("\n\n")[0].split())
    line = re.split(r"(?<=[.:]) (?=[A-Z`(])", first)[0].rstrip(".:")
    example = [part for part in doc.split("\n\n") if re.search(rf"\betude\.{name}\b", part)]
    shown = written(inspect.signature(thing)) if inspect.isfunction(thing) else ""
    return f"etude.{name}{shown}", line, example[-1].strip() if example else ""


def written(found: inspect.Signature) -> str:
    """Names and plain defaults; what is not plain is `...`, since its text may differ from run to run."""
    words, keyword = [], False
    for p in found.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not keyword:
            words, keyword = [*words, "*"], True
        keyword = keyword or p.kind is p.VAR_POSITIONAL
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        plain = isinstance(p.default, str | int | float | tuple | None)
        words.append(f"{star}{p.name}" + ("" if p.default is p.empty else f"={p.default!r}" if plain else "=..."))
    return f"({', '.join(words)})"


def api_page() -> str:
    text = HEAD
    listed = [name for names in GROUPS.values() for name in names.split()]
    if missing := set(etude.__all__) - {"__version__"} - set(listed):
        raise SystemExit(f"docs/generate_api.py has no group for {', '.join(sorted(missing))}")
    for group, names in GROUPS.items():
        text += f"## {group}\n\n"
        for name in names.split():
            signature, line, example = parts(name)
            text += f"### {name}\n\n`{signature}`\n\n{line}.\n\n```python\n{example}\n```\n\n"
    return text.rstrip("\n") + "\n" + FOOT + "".join(f"| `{room}` | {what} |\n" for room, what in ROOMS.items())


def analyse_index(text: str) -> str:
    """docs/analyse/index.md with the table of analyses as they are declared."""
    from etude.analyse.catalogue import docs_rows

    head = "| page | question |\n|---|---|\n"
    before, _, rest = text.partition(head)
    after = rest[rest.index("\n\n") :]
    return before + head + "\n".join(f"| {page} | {question} |" for page, question in docs_rows()) + after
