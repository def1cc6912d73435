from collections.abc import Callable
from typing import Any

from etude.base.errors import UsageError
from etude.surface.cli.scenarios import with_scenario
from etude.surface.verb import Verb
from etude.world.serve.asked import devices, images, kept, measured, offload, serve, split, workflow


def meant(args: list[str]) -> "str | tuple[str, list[str]]":
    """The verb that flags of `etude serve` mean, and the words that it takes."""
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
    "serve run": "--run",
    "serve rows": "--rows",
    "serve devices": "--devices",
    "serve workflow": "--workflow",
    "serve images": "--degree",
    "serve split": "--hbm-split",
}
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


PLACED = dict.fromkeys(("makespan_s", "p95_s", "latency_s"), "calls placed on devices of several kinds")
OFFLOADED = dict.fromkeys(
    ("prefill_s", "decode_s", "compute_s", "io_s", "tpot_s"), "requests whose keys and values are in the host's memory"
)
SPLIT = dict.fromkeys(("latency_s", "ttft_s", "goodput_rps"), "replicas that share their memory with embeddings")
"""Predicted figures of verbs of which nothing was measured."""


def _verb(
    name: str, asks: type[Any], inputs: Callable[[Any], Any], reads: Callable[[Any], Any],
    run: Callable[[Any], Any] = kept.told, **more: Any,
) -> Verb[Any, Any, Any]:  # fmt: skip
    return Verb(name, asks, inputs, run, reads=reads, **{"record": lambda found: found.record()} | more)


VERBS = (
    with_scenario(
        _verb("serve", serve.Serve, serve.serve_inputs, serve.readable, serve.run_serve, says=serve.lines, tool=True),
        serve.serve_scenario,
    ),
    with_scenario(
        _verb(
            "serve images",
            images.ServeImages,
            images.images_inputs,
            images.readable,
            images.run_images,
            unknown=dict.fromkeys(
                ("latency_s", "goodput_rps", "throughput_rps", "sizes"),
                "streams of images and videos: single ones were measured, which `etude score` compares",
            ),
        ),
        images.images_scenario,
    ),
    with_scenario(
        _verb(
            "serve workflow",
            workflow.ServeWorkflow,
            workflow.workflow_inputs,
            workflow.readable,
            workflow.run_flow,
            unknown=dict.fromkeys(("latency_s", "sum_s", "critical_path_s", "cost"), "workflows of several models"),
        ),
        workflow.workflow_scenario,
    ),
    with_scenario(
        _verb("serve devices", devices.ServeDevices, devices.placing, devices.readable, unknown=PLACED),
        devices.devices_scenario,
    ),
    _verb("serve offload", offload.ServeOffload, offload.offload_serving, offload.readable, unknown=OFFLOADED),
    _verb("serve split", split.ServeSplit, split.split_serving, split.readable, unknown=SPLIT),
    _verb("serve run", measured.ServeRun, measured.measured_run, measured.readable, says=measured.lines),
    _verb("serve rows", measured.ServeRows, lambda asked: asked.rows, measured.readable_rows, measured.run_rows,
          record=lambda rows: {"rows": rows}),
)  # fmt: skip
