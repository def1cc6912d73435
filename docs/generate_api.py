"""docs/api.md: the public names of `etude`, from their signatures and docstrings."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module

import etude
from etude.base.faces import homes

GROUPS = {
    "Nouns": "Job Run Trace System Plan",
    "Open": "open open_run open_system",
    "Look": "check diff query report timeline",
    "Make and change": "collect link convert generate edit anonymise",
    "Run": "simulate predict plan search serve fleet replay study energy",
    "Analyse": "breakdown idle kernels operators collectives critical_path stragglers memory roofline metrics steps "
    "compare",
    "Errors": "EtudeError",
}

EXTEND = {
    "Jobs, nodes and cards": "summary fold expand feeder open_feeder Timing Kind Collective Card Edit TraceError",
    "Recording from inside a script": "trace traced",
    "Analyses": "what_if trend reasons patterns graph_replays traffic measured_requests Lake html_table",
    "Machines and networks": "Device topology read_cluster collective_time_ns p2p_time_ns calibrate_device "
    "collective_schedule open_algorithm Operation run_operations flow_table flow_times best_placement",
    "Generation": "open_model micro learn synthesise Select Domain by_group pipeline_schedule Serving serving_job "
    "predict_serving",
    "Simulation": "Options LinkChange StopRanks SlowRank simulate_jobs simulate_until start_engine with_device_times "
    "astra",
    "Workflows, clients, sweeps and studies": "serve_workflow place_workflows federate Space evaluate spread Study",
    "What verbs take and return": "Model Engine Generated Simulated Prediction Served Sessions Fleet SharedFleet Federated Found Outcome "
    "Energy",
}
"""Names of `etude.extend`, in the order of the page."""

HEAD = """# Python API

<!-- made by docs/generate.py from the docstrings: change these, then run `make docs` -->

`import etude` is light; each name is loaded when it is first used. These names are what Etude promises: they change only with a line in the changelog. In the examples `job` is a `Job` and `run` a `Run`. Where a verb takes one of them the path of one does as well, and what `generate` or `predict` returned: `etude.breakdown("trace.json.gz")`; where it takes a system or a device, a name of the catalogue.

"""

FOOT = """
## Programs of your own

`etude.extend` has what programs and extensions take besides these verbs: `from etude.extend import Kind`. Its names are promised as those of `etude` are. Everything below other paths is private by convention and may change with any release; `etude.surface` is the command line.

"""


def target(name: str) -> object:
    module, there = homes("etude")[name]
    return getattr(import_module(module), there)


def parts(name: str) -> tuple[str, str, str]:
    """(signature, one line, example) of a public name."""
    thing = target(name)
    doc = inspect.getdoc(thing) or ""
    first = " ".join(doc.partition("\n\n")[0].split())
    line = sentence(first)
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
    if missing := set(etude.__all__) - {"__version__", "extend"} - set(listed):
        raise SystemExit(f"docs/generate_api.py has no group for {', '.join(sorted(missing))}")
    for group, names in GROUPS.items():
        text += f"## {group}\n\n"
        for name in names.split():
            signature, line, example = parts(name)
            text += f"### {name}\n\n`{signature}`\n\n{line}.\n\n```python\n{example}\n```\n\n"
    return text.rstrip("\n") + "\n" + FOOT + "\n".join(extend_tables())


def extend_tables() -> Iterator[str]:
    """A table for each group of `etude.extend`: name and first sentence."""
    listed = [name for names in EXTEND.values() for name in names.split()]
    if lost := set(dir(etude.extend)) ^ set(listed):
        raise SystemExit(f"docs/generate_api.py and etude/extend.py differ in {', '.join(sorted(lost))}")
    for group, names in EXTEND.items():
        rows = [f"| `{name}` | {first_line(getattr(etude.extend, name))}{shown(name)} |" for name in names.split()]
        yield f"### {group}\n\n| name | what it is |\n|---|---|\n" + "\n".join(rows) + "\n"


def shown(name: str) -> str:
    return f" `{example}`" if (example := example_of(name)) else ""


def example_of(name: str) -> str:
    """The example in the docstring of a name of `etude.extend`; an empty string where it has none of one line."""
    lines = (inspect.getdoc(getattr(etude.extend, name)) or "").split("\n\n")[1:]
    found = [line.strip() for line in lines if re.search(rf"\betude\.extend\.{name}\b", line)]
    return found[-1] if found and "\n" not in found[-1] else ""


def first_line(thing: object) -> str:
    """The first sentence of a docstring, as a cell of a table."""
    text = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    return sentence(text).replace("|", "\\|") + "."


def sentence(text: str) -> str:
    """The first sentence, without its full stop; of `a, b, ...` the dots."""
    first = re.split(r"(?<=[.:]) (?=[A-Z`(])", text)[0]
    return first.removesuffix(", ...").rstrip(".:") + (" and more" if first.endswith(", ...") else "")


def analyse_index(text: str) -> str:
    """docs/analyse/index.md with the table of analyses as they are declared."""
    from etude.analyse.catalogue import docs_rows

    head = "| page | question |\n|---|---|\n"
    before, _, rest = text.partition(head)
    after = rest[rest.index("\n\n") :]
    return before + head + "\n".join(f"| {page} | {question} |" for page, question in docs_rows()) + after
