"""`etude serve`: a stream of text requests, where its results go, and what a reader sees of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from etude.base.errors import UsageError
from etude.base.figures import figure, part, switch, text
from etude.base.grammar import line
from etude.base.outputs import OutputPlace, Printed
from etude.base.parameters import replaces, spelled
from etude.base.talk import say
from etude.cost.estimates import range_of
from etude.machine import open_system
from etude.world.scenario import PrintedScenario, ScenarioText, only_workload, workload_of
from etude.world.serve.asked.kept import OUTPUT, KeptStream, ServedPlace, told
from etude.world.serve.asked.ranges import MEAN
from etude.world.serve.asked.text import HOLDS, TextInput, TextServed, TextServing, holds_rps, said_of, text_serving
from etude.world.serve.asked.window import write_window
from etude.world.serve.elastic.scale import EXAMPLE, scale_rule

TIMES: Final = {
    "ttft_s": "first token",
    "tpot_s": "each further token",
    "itl_s": "between two tokens",
    "latency_s": "whole response",
}


@dataclass(frozen=True, kw_only=True)
class Serve(PrintedScenario, TextInput, KeptStream):
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
    etude serve --program config.json --system dgx-h100 --rate 4

    Passes are generated and simulated once for a model, a plan and a system, node by node, and kept; the loop over
    requests takes their times. The engine's rules are those of vLLM 0.19; flags have vLLM's names. `etude report` and
    `etude query` read the folder of -o. With --program, the passes are those of a model of your own, or of any causal
    language model of transformers: it is run without numbers and without a GPU, operator by operator.
    """

    requests_out: str | None = figure("out", "Parquet file to write, with one row per request", None, panel=OUTPUT)
    window: str = text(
        "write the passes that start in this window node by node: `60s:62s`; `60s:62s@3` for one replica",
        needs="job_out",
        like="10s:11s",
        panel=OUTPUT,
    )
    job_out: str | None = figure("out", "folder for the job of the window", None, needs="window", panel=OUTPUT)
    force: bool = switch("replace what is there", needs="out|requests_out|job_out", names=("-f",))
    output: Printed = part(Printed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeInputs:
    serving: TextServing
    folder: ServedPlace | None
    requests_out: OutputPlace | None
    window: str
    job: OutputPlace | None


def serve_inputs(asked: Serve) -> ServeInputs:
    serving, folder = text_serving(asked), ServedPlace.of(asked, lambda: said_of(asked))
    window, job, table = asked.window, _place(asked.job_out, asked), _place(asked.requests_out, asked)
    one = len(serving.stream.rates) < 2
    for name, given in (("window", window), ("scenario", asked.scenario)):
        if given and asked.program:
            replaces(asked, "program", name)
    if window:
        _check_window(serving, one=one)
    keep = (folder is not None and one) or bool(window)
    return ServeInputs(
        serving=replace(serving, keep_passes=keep),
        folder=folder,
        requests_out=table,
        window=window,
        job=job,
    )


def serve_scenario(asked: Serve, given: ServeInputs) -> ScenarioText:
    """This run alone on a machine."""
    replicas, rates = given.serving.replicas, given.serving.stream.rates
    if replicas.file or replicas.between.reconfigure or len(rates) > 1:
        said = f"{spelled(asked, 'scenario')} needs replicas of one size, one rate, and a plan that does not change"
        raise UsageError(said, hint="a model with `replicas`, and one `rate`")
    for name, several in (("--pp", replicas.pools[0].pp), ("--cp", replicas.pools[0].cp)):
        if several > 1:
            problem = "a scenario has no replicas of several stages, or of sequences in parts"
            raise UsageError(problem, where=name, hint=f"leave out {name}")
    tp, rows = replicas.pools[0].tp, sum(pool.count for pool in replicas.pools)
    for rule in replicas.between.scale.split(";") if replicas.between.scale else ():
        rows = max(rows, scale_rule(line(rule, "--scale", EXAMPLE), replicas.pools[0].count, lambda _: str).most)
    each = max(open_system(replicas.system).levels[0].size // tp, 1)
    workload = workload_of(asked, "serve", apart=("requests_out", "window", "job_out"))
    return only_workload("chat", workload, system=replicas.system, nodes=-(-rows // each))


def _check_window(serving: TextServing, *, one: bool) -> None:
    between = serving.replicas.between
    for name, several in (("--pp", serving.replicas.pools[0].pp), ("--cp", serving.replicas.pools[0].cp)):
        if several > 1:
            raise UsageError(f"--window cannot be combined with {name}", hint="leave one of them out")
    if not one:
        raise UsageError("--window needs a single stream", hint="one --rate")
    if between.reconfigure or between.scale:
        raise UsageError(
            f"--window cannot be combined with {'--reconfigure' if between.reconfigure else '--scale'}: replicas that "
            "start, stop or change cannot be written node by node",
            hint="leave it out",
        )
    if "experts" in serving.replicas.costs:
        raise UsageError("--offload experts cannot be combined with --window", hint="give one of them")


def _place(path: str | None, asked: Serve) -> OutputPlace | None:
    """A further place that is written, refused if it is taken."""
    if path is None:
        return None
    if Path(path).exists() and not asked.force:
        raise UsageError("already exists", where=path, hint="--force replaces it")
    return OutputPlace(Path(path), asked.force)


def run_serve(given: ServeInputs) -> TextServed:
    serving, found = given.serving, told(given.serving)
    if serving.stream.options.get("sort"):
        say(f"note: --sort moved {found.points[0][1].requests.moved:,} rows of {serving.stream.path}")
    if given.job is not None:
        found.more["window"] = write_window(found, given.window, given.job, costs=serving.replicas.costs)
    if given.requests_out is not None:
        _write_requests(found, given.requests_out)
    if given.folder is not None:
        given.folder.keep(*found.kept())
    return found


def _write_requests(found: TextServed, place: OutputPlace) -> None:
    """A row for each request, as a Parquet file."""
    import pyarrow.parquet as pq

    from etude.base.files import writing
    from etude.base.results import marked
    from etude.world.serve.results import request_table

    with writing(place.path, force=place.force) as temporary:
        pq.write_table(marked(request_table(found.points[-1][1]), "etude requests 1"), temporary, compression="zstd")
    say(f"wrote {place.path}")


# -- for a reader ------------------------------------------------------------------------------------------------------


def readable(found: TextServed) -> Any:
    """The figures of a stream, or a row for each rate."""
    rows = found.rows()
    return stream_figures(rows[0]) if len(rows) == 1 else [rate_row(one) for one in rows]


def lines(found: TextServed) -> list[str]:
    """How far step costs may be off, and up to which rate the limits hold."""
    told, rows = [], found.rows()
    if off := found.more["interpolation_error"]:
        told.append(f"step costs are interpolated; error {off['median']:.1%} at the median, {off['max']:.1%} at most")
    if len(rows) > 1:
        holds = holds_rps(rows, HOLDS)
        within = f"{HOLDS:.0%} of the requests are within the limits up to {holds:.3g}/s" if holds else ""
        told.append(within or "no rate is within the limits")
    return told


def _range(one: dict[str, Any], figure_name: str, part: str = MEAN) -> str:
    """Of a figure, or of a percentile of it."""
    return range_of(one, figure_name if part == MEAN else f"{figure_name}.{part}")


def stream_figures(one: dict[str, Any]) -> dict[str, Any]:
    shown = {"requests": f"{one['requests']:,} in {one['duration_s']:,.1f} s"}
    for key, what in TIMES.items():
        if one[key]:
            values = one[key].items()
            shown[what] = ", ".join(f"{name} {value:.4g} s{_range(one, key, name)}" for name, value in values)
    rate = f"{one['goodput_rps']:.2f} requests/s{_range(one, 'goodput_rps')}"
    shown["within the limits"] = f"{one['within_limits']:.1%}, {rate}"
    for tier, its in one["tiers"].items():
        shown[f"... {tier}"] = f"{its['within_limits']:.1%} of {its['requests']:,}, {its['goodput_rps']:.2f} requests/s"
    shown["tokens out/s"] = f"{one['output_tokens_per_s']:,.0f}{_range(one, 'output_tokens_per_s')}"
    shown["keys and values"] = f"{one['kv_peak']:.1%} of the blocks at peak, {one['preemptions']:,} preemptions"
    if found_tokens := one["cache_hit_tokens"]:
        shown["prefix-cache hits"] = (
            f"{found_tokens:,} tokens, {found_tokens / one['prompt_tokens']:.1%} of the prompts"
        )
    if one["kv_sent_bytes"]:
        shown["sent"] = f"{one['kv_sent_bytes'] / 1e9:,.2f} GB of keys and values, {one['transfer_s']:.4g} s each"
    if one["energy_j"] is not None:
        used = f"{one['energy_j']:,.0f} J{_range(one, 'energy_j')}"
        shown["energy"] = f"{used}, {one['idle_energy_j']:,.0f} J of it while idle"
    if one["step_imbalance"] is not None:
        shown["waiting at barriers"] = f"{one['step_imbalance']:.1%} of all steps"
    if one["changes"]:
        moved = [change["bytes"] for change in one["changes"] if "bytes" in change]
        loaded = f", {sum(moved) / 1e9:,.1f} GB of weights loaded" if moved else ""
        shown["changes"] = f"{len(one['changes'])}{loaded}"
        shown["replica time"] = f"{one['replica_s']:,.0f} replica seconds"
    if basis := one.get("basis"):
        first = next(iter(basis.values()))
        shown["range"] = f"9 of 10, by {first['text']}" if first["evidence"] else first["text"]
    shown["rules"] = one["engine"]
    shown["replicas busy"] = f"{one['busy']:.1%}, the busiest {one['imbalance']:.1%} above the mean"
    return shown


def rate_row(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "requests/s": round(one["rate_rps"], 2),
        "ttft p50 s": round(one["ttft_s"]["p50"], 3),
        "ttft p99 s": round(one["ttft_s"]["p99"], 3),
        "tpot p50 ms": round(one["tpot_s"]["p50"] * 1e3, 2) if one["tpot_s"] else None,
        "tpot p99 ms": round(one["tpot_s"]["p99"] * 1e3, 2) if one["tpot_s"] else None,
        "goodput/s": round(one["goodput_rps"], 2),
        "within": f"{one['within_limits']:.1%}",
        "busy": f"{one['busy']:.0%}",
    }
