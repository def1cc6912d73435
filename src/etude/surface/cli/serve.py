from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.base.figures import figure, part
from etude.base.outputs import Place, Printed, Written
from etude.base.talk import progress, say
from etude.surface.cli import serve_shown as shown
from etude.surface.verb import Verb
from etude.world.serve.asked import devices, images, measured, offload, split, text
from etude.world.serve.asked import workflow as flows

OUTPUT = "Output"


@dataclass(frozen=True, kw_only=True)
class Kept(Written):
    """Parameters of a stream that is kept."""

    out: str | None = figure("out", "folder for `etude query` and `etude report`", None, names=("-o",), panel=OUTPUT)


@dataclass(frozen=True, kw_only=True)
class Serve(text.TextInput, Kept):
    """A stream of requests on replicas of a model: TTFT, tail latencies and goodput, from simulated passes

    etude serve llama3-8b --replicas 4 --system dgx-h100 --requests r.csv
    etude serve llama3-70b --tp 4 --system dgx-h100 --rate 2 \\
        --slo ttft=1s,tpot=50ms
    etude serve qwen3-8b --system dgx-h100 --rate 1..40 --slo ttft=1s,tpot=50ms
    etude serve qwen3-32b --tp 2 --system dgx-h100 --rate 1..20 \\
        --disaggregate 2:6 --kv-codec fp8
    etude serve llama3-8b --replicas 8 --system dgx-h100 --requests r.csv \\
        --reconfigure "at=60s,tp=4;at=300s,tp=1"
    etude serve llama3-8b --replicas 2 --system dgx-h100 --requests r.csv \\
        --scale queue:4..32,most=16,every=10s
    etude serve pools.yaml --requests r.csv \\
        --slo "chat:ttft=1s,tpot=50ms;batch:latency=60s"
    etude serve llama3-8b --replicas 8 --system dgx-h100 --requests r.csv \\
        --router mine.py:route -o served/
    etude serve llama3-8b --system dgx-h100 --rate 20 \\
        --window 10s:12s --job-out window/

    Passes are generated and simulated once for a model, a plan and a system, node by node, and kept; the loop over
    requests takes their times. The engine's rules are those of vLLM 0.19; flags have vLLM's names. `etude report` and
    `etude query` read the folder of -o.
    """

    requests_out: str | None = figure("out", "Parquet file to write, with one row per request", None, panel=OUTPUT)
    window: str = figure(
        "text", "write the passes that start in this window node by node: `60s:62s`; `60s:62s@3` for one replica", "",
        needs="job_out", like="10s:11s", panel=OUTPUT,
    )  # fmt: skip
    job_out: str | None = figure("out", "folder for the job of the window", None, needs="window", panel=OUTPUT)
    force: bool = figure("switch", "replace what is there", False, needs="out|requests_out|job_out", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class ServeImages(images.ImagesInput, Kept):
    """Images and videos, denoised on groups of devices whose number may change from step to step

    etude serve images wan2.1-14b --gpus 16 --system dgx-h100 --requests dit.csv
    etude serve images wan2.1-14b --gpus 16 --system dgx-h100 --requests dit.csv \\
        --degree fixed:4 --slo latency=120s
    etude serve images flux.1-dev --system dgx-h100 --rate 2 --degree elastic:1..4 \\
        --requests "mix:512x512@20=0.6,1024x1024@28=0.4"
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class ServeWorkflow(flows.WorkflowInput, Kept):
    """Sessions of agents and other compound programs: model calls, tools and environments

    etude serve workflow swe_agent --models llama3-70b,llama3-8b --system dgx-h100
    etude serve workflow swe_agent --cache belady --router affinity
    etude serve workflow flow.yaml --choose pixie --slo latency=2s,cost=0.01,label=0.85
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class ServeDevices(devices.DevicesInput):
    """Calls of workflows placed on devices of several kinds, one at a time on each; policies beside round robin

    etude serve devices "dags/*.yaml" --devices devices.yaml
    etude serve devices flow.yaml --devices devices.yaml --place heft,reuse,future:4
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class ServeOffload(offload.OffloadInput):
    """One request at a time, with keys and values in the host's memory and on its disk

    etude serve offload llama3-8b --prompt 32768 --output 128 --path dual \\
        --host-memory 4GB --system h200-server
    etude serve offload llama3-8b --requests r.csv --system h200-server

    The system has the tiers `page_cache` and `disk`. Experts in a host's memory are a matter of `etude serve MODEL
    --offload "experts path=auto host=xeon-8480"`.
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class ServeSplit(split.SplitInput):
    """A recommender whose replicas keep embeddings and keys and values in one memory

    etude serve split llama3-8b --requests recommend:users=40,items=200 --rate 20 \\
        --split "0.1..0.9 room=4GB link=25GB/s" --system dgx-a100
    etude serve split llama3-8b --requests r.csv --system dgx-a100 \\
        --split "adaptive link=25GB/s" --slo latency=1s
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class ServeRun(measured.RunInput):
    """A measured run served again: measured and predicted times

    etude serve run measured/ --config a
    etude serve run result.json llama3-8b --system dgx-h100 --max-num-seqs 64
    etude serve run result.json qwen3-32b --tp 2 --system dgx-h100 \\
        --disaggregate 1:1 --kv-codec fp8
    etude serve run result.json llama3-8b --replicas 2 --router two --system dgx-h100

    A folder says what it ran on; with a file of measured requests, the model, the system and the engine are given.
    """

    output: Printed = part(Printed)


@dataclass(frozen=True, kw_only=True)
class ServeRows(measured.RowsInput):
    """Rows of serving measurements, each of them predicted

    etude serve rows rows.csv
    """

    output: Printed = part(Printed)


# -- old spellings -----------------------------------------------------------------------------------------------------


def meant(args: list[str]) -> "str | tuple[str, list[str]]":
    """The verb that flags of `etude serve` stand for, and the words that it takes."""
    said = args[: args.index("--") if "--" in args else None]
    has = {name for name in FLAGS if any(word == name or word.startswith(f"{name}=") for word in said)}
    if "--offload" in has and not has - {"--offload", "--hbm-split"}:
        words, rest = _without(args, "--offload")
        if not words.startswith("experts"):
            return "serve offload", [*rest, "--path", _path_of(words)]
        has -= {"--offload"}
    verb, given = next(((verb, flag) for verb, flag in VERB_OF.items() if flag in has), ("serve", ""))
    place = "--workflow" if verb == "serve devices" else given
    if place not in PLACES or place not in has:
        return verb
    path, rest = _without(args, place)
    return verb, [path, *rest]


VERB_OF = {
    "serve run": "--run", "serve rows": "--rows", "serve devices": "--devices", "serve workflow": "--workflow",
    "serve images": "--degree", "serve split": "--hbm-split",
}  # fmt: skip
"""Verb -> the flag that stood for it; the first that is given counts."""
FLAGS = (*VERB_OF.values(), "--offload")
PLACES = ("--run", "--rows", "--workflow")
"""Flags whose values are arguments now, ahead of a model."""


def _without(args: list[str], flag: str) -> tuple[str, list[str]]:
    """The value of a flag, and the other words."""
    at = next(k for k, word in enumerate(args) if word == flag or word.startswith(f"{flag}="))
    if args[at] != flag:
        return args[at].partition("=")[2], [*args[:at], *args[at + 1 :]]
    if at + 1 == len(args):
        raise UsageError(f"Option '{flag}' requires an argument.")
    return args[at + 1], [*args[:at], *args[at + 2 :]]


def _path_of(words: str) -> str:
    what, _, path = words.partition(" path=")
    if what != "kv" or not path:
        raise UsageError(f"--offload: `{words}`", hint='"kv path=dual", or "experts path=auto host=xeon-8480"')
    return path


# -- inputs and runs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """What is kept of a result, and where."""

    place: Place
    said: dict[str, Any]
    """What was asked, for the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeInputs:
    serving: Any
    folder: Folder | None = None
    requests_out: Place | None = None
    window: str = ""
    job: Place | None = None


def folder_of(asked: Any, said: Callable[[], dict[str, Any]]) -> Folder | None:
    place = Place.of(asked)
    return None if place is None else Folder(place=place, said=said())


def text_inputs(asked: Serve) -> ServeInputs:
    serving, folder = text.text_serving(asked), folder_of(asked, lambda: text.said_of(asked))
    window, job, table = asked.window, _place(asked.job_out, asked), _place(asked.requests_out, asked)
    replicas, one = serving.replicas, len(serving.stream.rates) < 2
    if window and not one:
        raise UsageError("--window needs a single stream", hint="one --rate")
    if window and (replicas.between.reconfigure or replicas.between.scale):
        flag = "--reconfigure" if replicas.between.reconfigure else "--scale"
        raise UsageError(
            f"--window cannot be combined with {flag}: replicas that start, stop or change cannot be written node by "
            "node", hint="leave it out",
        )  # fmt: skip
    if window and "experts" in replicas.costs:
        raise UsageError("--offload experts cannot be combined with --window", hint="give one of them")
    keep = (folder is not None and one) or bool(window)
    return ServeInputs(
        serving=replace(serving, keep_passes=keep), folder=folder, requests_out=table, window=window, job=job
    )


def _place(path: str | None, asked: Any) -> Place | None:
    """A further place that is written, refused if it is taken."""
    if path is None:
        return None
    if Path(path).exists() and not asked.force:
        raise UsageError("already exists", where=path, hint="--force replaces it")
    return Place(Path(path), asked.force)


def run_text(given: ServeInputs) -> text.TextServed:
    serving: text.TextServing = given.serving
    found = serving.run()
    _say_notes(found.service)
    if serving.stream.options.get("sort"):
        say(f"note: --sort moved {found.points[0][1].requests.moved:,} rows of {serving.stream.path}")
    if given.job is not None:
        from etude.surface.cli.serve_window import write_window

        found.more["window"] = write_window(found, given.window, given.job, costs=serving.replicas.costs)
    if given.requests_out is not None:
        shown.write_requests(found.points[-1][1], given.requests_out)
    if given.folder is not None:
        _keep(*found.kept(given.folder.said), given.folder)
    return found


def image_inputs(asked: ServeImages) -> ServeInputs:
    serving, folder = images.image_serving(asked), folder_of(asked, lambda: images.said_of(asked))
    if folder is not None and len(serving.rates) > 1:
        raise UsageError("--out needs a single rate", hint="one --rate with -o")
    return ServeInputs(serving=serving, folder=folder)


def run_images(given: ServeInputs) -> Any:
    found = given.serving.run()
    if given.folder is not None:
        _keep(found.served, found.rows[0] | {"asked": given.folder.said}, given.folder)
    return found


def flow_inputs(asked: ServeWorkflow) -> ServeInputs:
    serving = flows.flow_serving(asked)
    return ServeInputs(serving=serving, folder=folder_of(asked, lambda: flows.said_of(asked, serving)))


def run_flow(given: ServeInputs) -> Any:
    from etude.world.serve.stored import write_workflow

    found = run_told(given.serving)
    if (folder := given.folder) is not None:
        write_workflow(found.ran, found.figures | {"asked": folder.said}, folder.place.path, force=folder.place.force)
        say(f"wrote {folder.place.path}")
    return found


def run_told(serving: Any) -> Any:
    """The result of what is served, after its notes."""
    found = serving.run()
    _say_notes(found)
    return found


def run_rows(path: str) -> list[dict[str, Any]]:
    from etude.world.serve.measured import predict_rows

    with progress("predicting rows") as advance:
        return predict_rows(path, advance=advance)


def _say_notes(found: Any) -> None:
    for note in found.notes:
        say(f"note: {note}")


def _keep(served: Any, record: dict[str, Any], folder: Folder) -> None:
    from etude.world.serve.stored import write_served

    write_served(served, record, folder.place.path, force=folder.place.force)
    say(f"wrote {folder.place.path}")


def recorded(found: Any) -> Any:
    return found.record()


VERBS = (
    Verb(name="serve", asks=Serve, inputs=text_inputs, run=run_text, record=recorded, show=shown.show_text, tool=True),
    Verb(name="serve images", asks=ServeImages, inputs=image_inputs, run=run_images, record=recorded,
         show=shown.show_images),
    Verb(name="serve workflow", asks=ServeWorkflow, inputs=flow_inputs, run=run_flow, record=recorded,
         show=shown.show_flow),
    Verb(name="serve devices", asks=ServeDevices, inputs=devices.placing, run=run_told, record=recorded,
         show=shown.show_placed),
    Verb(name="serve offload", asks=ServeOffload, inputs=offload.offload_serving, run=run_told, record=recorded,
         show=shown.show_offloaded),
    Verb(name="serve split", asks=ServeSplit, inputs=split.split_serving, run=run_told, record=recorded,
         show=shown.show_split),
    Verb(name="serve run", asks=ServeRun, inputs=measured.measured_run, run=run_told, record=recorded,
         show=shown.show_beside),
    Verb(name="serve rows", asks=ServeRows, inputs=lambda asked: asked.rows, run=run_rows,
         record=lambda rows: {"rows": rows}, show=shown.show_rows),
)  # fmt: skip
