from pathlib import Path
from typing import Annotated

import typer

from etude.cli.app import MAKE, app
from etude.cli.inputs import MaxBytes, Workers, open_job
from etude.cli.output import AsJson, emit, say
from etude.cli.times_on import TimesOn, with_times


@app.command(rich_help_panel=MAKE)
def learn(
    jobs: Annotated[list[Path], typer.Argument(help="Jobs to learn from.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The model to write: `.json`.")] = Path("model.json"),
    times_on: TimesOn = "",
    workers: Workers = 1,
    max_bytes: MaxBytes = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace what is there.")] = False,
    json: AsJson = False,
) -> None:
    """A small model of jobs, without names, shapes or exact sizes, to make others of

    etude learn run/ -o model.json
    etude generate learned model.json --ranks 512 -o job/
    """
    from etude.files import writing
    from etude.generate.synth import write
    from etude.generate.synth_grammar import size
    from etude.generate.synth_learn import learn as learn_from

    opened = [with_times(open_job(path, None, workers, max_bytes), times_on) for path in jobs]
    learned = learn_from(opened)
    with writing(out, force=force) as path:
        write(learned, path)
    said = {
        "jobs": len(learned.templates),
        "ranks": [t.ranks for t in learned.templates],
        "nodes": sum(t.nodes for t in learned.templates),
        "classes": len(learned.classes),
        "symbols": len(learned.symbols),
        "length": sum(size(role.order) for t in learned.templates for role in t.roles),
        "bytes": out.stat().st_size,
        "hidden": learned.hidden,
    }
    emit(said, json=json)
    say(f"wrote {out}")
