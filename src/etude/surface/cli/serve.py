from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from etude.base.errors import UsageError
from etude.surface.api.serving import read_as
from etude.surface.cli.app import RUN, app
from etude.surface.cli.output import AsJson, emit, progress, say
from etude.surface.cli.plan_flags import ModelName, with_fields
from etude.world.serve import Engine
from etude.world.serve.limits import parse_limits
from etude.world.serve.pools import Between

if TYPE_CHECKING:
    from etude.world.serve import Served

EXAMPLE = """A stream of requests on replicas of a model: TTFT, tail latencies and goodput, from simulated passes

[bold]Example[/bold]

  etude serve llama3-8b --replicas 4 --system dgx-h100 --requests azure_2023_conv.csv
  etude serve llama3-70b --tp 4 --system dgx-h100 --rate 2 --slo ttft=1s,tpot=50ms
  etude serve qwen3-8b --system dgx-h100 --rate 1..40 --slo ttft=1s,tpot=50ms
  etude serve qwen3-32b --tp 2 --system dgx-h100 --disaggregate 2:6 --kv-codec fp8 --rate 1..20
  etude serve llama3-8b --replicas 8 --system dgx-h100 --requests r.csv --reconfigure "at=60s,tp=4;at=300s,tp=1"
  etude serve llama3-8b --replicas 2 --system dgx-h100 --requests r.csv --scale queue:4..32,most=16,every=10s
  etude serve pool.yaml --requests r.csv --slo "chat:ttft=1s,tpot=50ms;batch:latency=60s"
  etude serve llama3-8b --replicas 8 --system dgx-h100 --requests r.csv --router mine.py:route
  etude serve --run measured/vllm_runs/RTX4090/Llama-3.1-8B --ops measured/vllm_profiles/RTX4090/...
  etude serve --workflow swe_agent --models llama3-70b,llama3-8b --cache belady --router affinity
  etude serve --workflow "dags/*.yaml" --devices mixed.yaml --place heft,reuse,future:2
  etude serve wan2.1-14b --gpus 16 --system dgx-h100 --requests dit.csv --degree elastic --set-up 60us
  etude serve --rows measured/ml_energy_llm.csv --json
  etude serve ... -o served/; etude report served/ -o serve.html; etude query served/ "select ..."
  etude serve ... --window 60s:62s --job-out job/

Passes are generated and simulated once for a model, a plan and a system, node by node, and kept; the loop over
requests takes their times. The engine's rules are those of vLLM 0.19; flags have vLLM's names.
"""
ENGINE = "The engine"
POOLS = "Between replicas"
MEASURED = "Measured runs"
HOLDS = 0.9
FLOW = "Workflows"
IMAGES = "Images and videos"


@app.command(rich_help_panel=RUN, help=EXAMPLE)
@with_fields(Between, "between", POOLS)
@with_fields(Engine, "engine", ENGINE)
def serve(
    engine: dict[str, Any],
    between: dict[str, Any],
    model: ModelName = "",
    system: Annotated[
        str, typer.Option("--system", "-s", help="Simulate there: a name of `etude systems`, or a file.")
    ] = "",
    tp: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks of a replica.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Ranks of a replica over which experts are spread.")] = 1,
    precision: Annotated[str, typer.Option(help="Data type of weights and products: bf16, fp8.")] = "bf16",
    kv_dtype: Annotated[
        str, typer.Option(help="Data type of keys and values: bf16, fp8; default: that of the computation.")
    ] = "",
    replicas: Annotated[int, typer.Option(min=1, help="Copies of the model, each with its own engine.")] = 1,
    router: Annotated[
        str,
        typer.Option(
            help="turn, least, tokens, two, session, prefix, affinity, br0, br:STEPS, NAME+steal, FILE.py:name."
        ),
    ] = "least",
    requests: Annotated[
        str,
        typer.Option(
            help="CSV, JSON or JSON Lines file of requests, a file of `etude requests`, or `agents:turns=8`, "
            "`recommend:`."
        ),
    ] = "",
    first: Annotated[int, typer.Option(min=0, help="Use only the first requests, this many; 0: all.")] = 0,
    sort: Annotated[
        bool, typer.Option("--sort", help="Sort the rows of the file by time; without it, unsorted files are refused.")
    ] = False,
    rate: Annotated[str, typer.Option(help="Requests per second: `4`, or `1..20` for a curve.")] = "",
    count: Annotated[int, typer.Option(min=1, help="Number of generated requests, if no file is given.")] = 500,
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens of generated requests.")] = 1024,
    output: Annotated[int, typer.Option(min=1, help="Output tokens of generated requests.")] = 128,
    burst: Annotated[
        float, typer.Option(min=0.0, help="Variation of the gaps between generated requests: 1 is Poisson, 0 is even.")
    ] = 1.0,
    diurnal: Annotated[str, typer.Option(help="Swing of the rate around its mean, and its period: `0.8@24h`.")] = "",
    lengths: Annotated[
        Path | None, typer.Option(help="File of requests whose lengths generated requests are drawn from.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    slo: Annotated[
        str,
        typer.Option(
            help="Limits of goodput: `ttft=1s,tpot=50ms`; `chat:ttft=1s;batch:latency=60s`. For a "
            "session of a workflow: `latency=2s,cost=0.01,label=0.8`."
        ),
    ] = "",
    token_budget: Annotated[int, typer.Option(min=0, help="Another name for --max-num-batched-tokens.")] = 0,
    stack: Annotated[str, typer.Option(help="Software stack of the engine: vllm, torch-flash2, none.")] = "vllm",
    ops: Annotated[Path | None, typer.Option(help="Database of `etude ops`, or profile folder of the engine.")] = None,
    requests_out: Annotated[Path | None, typer.Option(help="Parquet file to write, with one row per request.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for `etude query` and `etude report`.")
    ] = None,
    window: Annotated[
        str,
        typer.Option(
            help="Write the passes that start in this window node by node: `60s:62s`; `60s:62s@3` for one replica."
        ),
    ] = "",
    job_out: Annotated[Path | None, typer.Option(help="Folder for the job of the window.")] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a measured run, or a file of `etude requests`, to simulate.", rich_help_panel=MEASURED
        ),
    ] = None,
    config: Annotated[str, typer.Option(help="Name of the run in the folder.", rich_help_panel=MEASURED)] = "",
    steps: Annotated[
        str, typer.Option(help="Source of the times of its steps: recorded, grid, catalogue.", rich_help_panel=MEASURED)
    ] = "",
    rows: Annotated[
        Path | None,
        typer.Option(help="CSV file of serving measurements: predict each of its rows.", rich_help_panel=MEASURED),
    ] = None,
    workflow: Annotated[
        str,
        typer.Option(
            help="YAML file of tasks, or `swe_agent`: sessions instead of requests. With --devices, several files: "
            "`dags/*.yaml`.",
            rich_help_panel=FLOW,
        ),
    ] = "",
    models: Annotated[
        str, typer.Option(help="Models of the roles of the workflow, in order.", rich_help_panel=FLOW)
    ] = "",
    order: Annotated[str, typer.Option(help="Order of tasks: data, program.", rich_help_panel=FLOW)] = "data",
    choose: Annotated[
        str,
        typer.Option(
            help="Choice among alternatives: first, fixed:best, fixed:cheap, within, pixie, FILE.py:name.",
            rich_help_panel=FLOW,
        ),
    ] = "first",
    devices: Annotated[
        str,
        typer.Option(
            help="YAML file of devices of several kinds: calls are placed on them, one at a time on each.",
            rich_help_panel=FLOW,
        ),
    ] = "",
    place: Annotated[
        str,
        typer.Option(
            help="Placement on --devices: roundrobin, heft, reuse, future:H, FILE.py:name, or several of them. Without "
            "--devices: FILE.py:name instead of a router.",
            rich_help_panel=FLOW,
        ),
    ] = "",
    offload: Annotated[
        str,
        typer.Option(
            help="Offload below the device: `kv path=cache|direct|dual`, one request at a time, or "
            "`experts path=host|stream|auto host=xeon-8480`."
        ),
    ] = "",
    host_memory: Annotated[str, typer.Option(help="Host memory for offloading: `8GB`.")] = "8GB",
    hbm_split: Annotated[
        str,
        typer.Option(
            help="Fraction of the memory for embeddings, the rest being for keys and values: `0.3`, `0.1..0.9`, "
            "`adaptive`."
        ),
    ] = "",
    degree: Annotated[
        str,
        typer.Option(
            help="Devices per denoising step: fixed:4, elastic, elastic:1..8, FILE.py:name.", rich_help_panel=IMAGES
        ),
    ] = "",
    gpus: Annotated[int, typer.Option(min=1, help="Number of devices that images share.", rich_help_panel=IMAGES)] = 8,
    images_at_once: Annotated[
        int, typer.Option(min=1, max=16, help="Most images of one size in one step.", rich_help_panel=IMAGES)
    ] = 1,
    encode: Annotated[str, typer.Option(help="Time to encode a text, on one device.", rich_help_panel=IMAGES)] = "0s",
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    json: AsJson = False,
) -> int:
    bench = None
    if run is not None and run.is_file():
        from etude.world.serve.measured import bench_result

        bench, requests = bench_result(run), str(run)
        if not model or not system:
            hint = "etude serve llama3-8b --system dgx-h100 --run result.json, and the engine's flags"
            raise UsageError("measured requests do not say what they ran on", where=str(run), hint=hint)
    elif run is not None:
        return _run(run, ops, config, steps, json=json)
    if rows is not None:
        return _rows(rows, json=json)
    if devices:
        from etude.surface.cli.serve_devices import on_devices

        others = {
            "--models": models,
            "--slo": slo,
            "--out": out,
            "--choose": choose != "first",
            "--order": order != "data",
        }
        return on_devices(workflow, devices, place, others, seed=seed, stack=stack, json=json)
    if workflow:
        from etude.surface.cli.serve_workflow import sessions

        return sessions(
            workflow, out, force=force, json=json, system=system, models=models, slo=slo, replicas=replicas,
            router=router, order=order, choose=choose, place=place, engine=read_as(Engine, engine), stack=stack,
            seed=seed,
        )  # fmt: skip
    if config or steps:
        raise UsageError("--config and --steps apply only to a measured run", hint="--run FOLDER")
    if not model:
        raise UsageError("no model is given", hint="etude serve llama3-8b --system dgx-h100 --rate 4")
    if not system and not model.endswith((".yaml", ".yml")):  # a file of pools may name them
        raise UsageError("no system is given", hint="--system dgx-h100; `etude systems` lists them")
    experts = None
    if offload.partition(" ")[0] == "experts":
        from etude.world.serve.offload import expert_rules

        experts, offload = expert_rules(offload), ""
        if window or between.get("draft_model") or hbm_split:
            raise UsageError(
                "--offload experts cannot be combined with --window, --draft-model or --hbm-split",
                hint="give one of them",
            )
    if degree:
        from etude.surface.cli.serve_images import show_images

        drawn = {"count": count, "first": first, "cv": burst, "seed": seed}
        return show_images(
            model, system, requests, degree, gpus=gpus, rates=_rates(rate), limits=parse_limits(slo), drawn=drawn,
            encode=encode, set_up_ns=read_as(Between, between).set_up_ns, batch=images_at_once,
            order=str(read_as(Engine, engine).scheduling_policy), stack=stack if stack != "vllm" else "xdit-0.4",
            out=out, force=force, json=json,
        )  # fmt: skip
    if not requests and not rate and not offload:
        raise UsageError("no requests are given", hint="--requests FILE, or --rate 4")
    if bool(window) != (job_out is not None):
        raise UsageError("--window and --job-out must be given together", hint="--window 60s:62s --job-out job/")
    if token_budget:
        engine["max_num_batched_tokens"] = token_budget
    from etude.machine import open_system
    from etude.surface.api.serving import service
    from etude.world.serve import request_stream, summary
    from etude.world.serve.stored import write_served

    made = service(
        model, system, replicas=replicas, tp=tp, ep=ep, router=router, precision=precision, kv_dtype=kv_dtype,
        stack=stack, ops=ops, engine=read_as(Engine, engine), between=read_as(Between, between), slo=slo, seed=seed,
        **({"experts": experts} if experts else {}),
    )  # fmt: skip
    for note in made.notes:
        say(f"note: {note}")
    placed, limits, given = made.placed, made.limits, made.between
    if offload:
        from etude.surface.cli.serve_offload import show_offloaded

        one_by_one = 0.0 if requests else 1.0
        stream = request_stream(
            requests or None, first=first, rate_per_s=one_by_one, count=1, prompt=prompt, output=output, sort=sort
        )
        kept = made.network.layers, made.token_bytes
        return show_offloaded(stream, placed.cost, open_system(system), offload, host_memory, kept, json=json)
    if hbm_split:
        from etude.surface.cli.serve_split import show_split

        stream = request_stream(requests or None, first=first, rate_per_s=_one_rate(rate), seed=seed, sort=sort)
        room = placed.blocks * made.rules.block_size * made.token_bytes, made.token_bytes
        return show_split(
            stream, placed.cost, open_system(system), hbm_split, room, replicas=replicas, router=router,
            limits=limits, json=json,
        )  # fmt: skip
    rates = _rates(rate)
    if window and len(rates) > 1:
        raise UsageError("--window needs a single stream", hint="one --rate")
    if window and (given.reconfigure or given.scale):
        raise UsageError(
            "--window: replicas that start, stop or change cannot be written node by node", hint="leave it out"
        )
    points = []
    for one in rates or [0.0]:
        stream = request_stream(
            requests or None, first=first, rate_per_s=one, count=count, prompt=prompt, output=output, cv=burst,
            diurnal=diurnal, like=lengths, seed=seed, sort=sort,
        )  # fmt: skip
        found = made.serve(stream, keep_passes=(out is not None and len(rates) < 2) or bool(window))
        points.append((one, found))
    if bench is not None:
        from etude.world.serve.measured import beside_bench

        return _beside(beside_bench(bench, points[0][1]), json=json)
    if sort:
        say(f"note: --sort moved {points[0][1].requests.moved:,} rows of {requests}")
    more: dict[str, Any] = {"interpolation_error": _interpolation(made.groups)}
    if placed.experts:
        more["experts"] = placed.experts
    if job_out is not None:
        from etude.surface.cli.serve_window import write_window

        more["window"] = write_window(
            points[0][1], made.network, made.pools, window, {"groups": made.groups, **made.options}, job_out,
            system=system, precision=precision, kv_dtype=kv_dtype, force=force,
        )  # fmt: skip
    if requests_out is not None:
        _write(points[-1][1], requests_out, force=force)
    if out is not None:
        asked = {
            "model": model, "system": system, "tp": tp, "ep": ep, "precision": precision, "replicas": replicas,
            "router": router, "requests": requests, "rate": rate, "slo": slo, "stack": stack, "seed": seed,
        }  # fmt: skip
        shown, curve = points[-1][1], {}
        if len(points) > 1:  # the stream at the highest rate that holds stands for all
            from etude.surface.cli.serve_curve import curve_of, shown_point

            curve = curve_of(points, limits, HOLDS)
            shown = made.serve(points[shown_point(curve)][1].requests, keep_passes=True, again=True)
        engine_said = {name: str(value) for name, value in (engine | between).items()}
        record = summary(shown, limits=limits) | more | curve | {"asked": asked | engine_said}
        write_served(shown, record, out, force=force)
        say(f"wrote {out}")
    _emit(points, limits, more, json=json)
    return 0


def _run(folder: Path, ops: Path | None, config: str, steps: str, *, json: bool) -> int:
    from etude.world.serve.measured import replayed

    return _beside(replayed(folder, ops=ops, config=config, steps=steps), json=json)


def _beside(found: dict[str, Any], *, json: bool) -> int:
    """Prints measured and predicted figures side by side. Returns the exit code."""
    if json:
        emit(found, json=True)
        return 0
    emit([
        {"": name, "measured s": round(found["measured"][name], 5), "predicted s": round(found["predicted"][name], 5),
         "error": f"{found['error'][name]:+.2%}"}
        for name in found["measured"]
    ])  # fmt: skip
    for note in found["assumed"]:
        say(f"note: {note}")
    return 0


def _rows(path: Path, *, json: bool) -> int:
    from etude.world.serve.measured import predict_rows

    with progress("predicting rows") as advance:
        found = predict_rows(path, advance=advance)
    if json:
        emit({"rows": found}, json=True)
        return 0
    emit([_row(record) for record in found])
    return 0


def _row(record: dict[str, Any]) -> dict[str, Any]:
    """A row with its first predicted figure and the error."""
    if "refused" in record:
        return {"row": record["row"], "figure": None, "measured": None, "predicted": None, "error": record["refused"]}
    name = next(iter(record["predicted"]))
    measured, predicted = record["measured"].get(name), record["predicted"][name]
    return {
        "row": record["row"],
        "figure": name,
        "measured": round(measured, 3) if measured else None,
        "predicted": round(predicted, 3),
        "error": f"{predicted / measured - 1:+.1%}" if measured else None,
    }


def _rates(text: str) -> list[float]:
    """`4` is one rate; `1..20` is eight rates from 1 to 20 with equal ratios. Raises UsageError for other text."""
    low, dots, high = text.partition("..")
    try:
        values = [float(low), float(high)] if dots else [float(low)] if low else []
    except ValueError:
        raise UsageError(f"--rate: `{text}` is not a rate", hint="4, or 1..20") from None
    if any(not 0 < value < 1e9 for value in values) or (dots and values[0] >= values[1]):
        raise UsageError(f"--rate: `{text}` is not a rate", hint="4, or 1..20")
    if not dots:
        return values
    return [values[0] * (values[1] / values[0]) ** (k / 7) for k in range(8)]


def _one_rate(text: str) -> float:
    found = _rates(text)
    if len(found) > 1:
        raise UsageError("--hbm-split takes one rate", hint="one --rate")
    return found[0] if found else 0.0


def _write(served: "Served", path: Path, *, force: bool) -> None:
    import pyarrow.parquet as pq

    from etude.base.files import writing
    from etude.world.serve import request_table

    with writing(path, force=force) as temporary:
        pq.write_table(request_table(served), temporary, compression="zstd")
    say(f"wrote {path}")


def _interpolation(groups: list[Any]) -> dict[str, float] | None:
    """Interpolation error of the step costs at shapes between their points: the largest over all groups; None if one is
    unknown."""
    known = [group.error for group in groups if group.error is not None]
    if len(known) < len(groups):
        return None
    return {"median": max(median for median, _ in known), "max": max(most for _, most in known)}


def _emit(
    rows: list[tuple[float, "Served"]], limits: dict[str, dict[str, float]], more: dict[str, Any], *, json: bool
) -> None:
    from etude.surface.cli.serve_curve import holds_rps
    from etude.world.serve import summary

    found = [({"rate_rps": rate} if len(rows) > 1 else {}) | summary(served, limits=limits) for rate, served in rows]
    holds = holds_rps(found, HOLDS) if len(rows) > 1 else None
    if json:
        emit({"rates": found, "holds_rps": holds, **more} if len(rows) > 1 else found[0] | more, json=True)
        return
    if len(rows) > 1:
        emit([_line(one) for one in found])
        _say_error(more)
        say(
            f"{HOLDS:.0%} of the requests are within the limits up to {holds:.3g}/s"
            if holds
            else "no rate is within the limits"
        )
        return
    one = found[0]
    shown = {"requests": f"{one['requests']:,} in {one['duration_s']:,.1f} s"}
    for key, what in (("ttft_s", "first token"), ("tpot_s", "each further token"), ("latency_s", "whole response")):
        if one[key]:
            shown[what] = ", ".join(f"{name} {value:.4g} s" for name, value in one[key].items())
    shown["within the limits"] = f"{one['within_limits']:.1%}, {one['goodput_rps']:.2f} requests/s"
    for tier, its in one["tiers"].items():
        shown[f"... {tier}"] = f"{its['within_limits']:.1%} of {its['requests']:,}, {its['goodput_rps']:.2f} requests/s"
    shown["tokens out/s"] = f"{one['output_tokens_per_s']:,.0f}"
    shown["keys and values"] = f"{one['kv_peak']:.1%} of the blocks at peak, {one['preemptions']:,} preemptions"
    if found_tokens := one["cache_hit_tokens"]:
        shown["prefix-cache hits"] = (
            f"{found_tokens:,} tokens, {found_tokens / one['prompt_tokens']:.1%} of the prompts"
        )
    if one["kv_sent_bytes"]:
        shown["sent"] = f"{one['kv_sent_bytes'] / 1e9:,.2f} GB of keys and values, {one['transfer_s']:.4g} s each"
    if one["energy_j"] is not None:
        shown["energy"] = f"{one['energy_j']:,.0f} J, {one['idle_energy_j']:,.0f} J of it while idle"
    if one["step_imbalance"] is not None:
        shown["waiting at barriers"] = f"{one['step_imbalance']:.1%} of all steps"
    if one["changes"]:
        moved = [change["bytes"] for change in one["changes"] if "bytes" in change]
        loaded = f", {sum(moved) / 1e9:,.1f} GB of weights loaded" if moved else ""
        shown["changes"] = f"{len(one['changes'])}{loaded}"
        shown["replica time"] = f"{one['replica_s']:,.0f} replica seconds"
    shown["rules"] = one["engine"]
    shown["replicas busy"] = f"{one['busy']:.1%}, the busiest {one['imbalance']:.1%} above the mean"
    emit(shown)
    _say_error(more)


def _say_error(more: dict[str, Any]) -> None:
    if off := more["interpolation_error"]:
        say(f"step costs are interpolated; error {off['median']:.1%} at the median, {off['max']:.1%} at most")


def _line(one: dict[str, Any]) -> dict[str, Any]:
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
