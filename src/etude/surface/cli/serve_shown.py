"""Results of `etude serve` for a reader."""

from typing import TYPE_CHECKING, Any

from etude.base.outputs import Place
from etude.base.talk import say
from etude.surface.cli.output import emit

if TYPE_CHECKING:
    from etude.world.serve import Served
    from etude.world.serve.asked import devices, images, measured, offload, split, text, workflow

PLACED = ("place", "makespan_s", "makespan_over_roundrobin", "p95_s", "p95_over_roundrobin", "loads", "found_tokens")


def write_requests(served: "Served", place: Place) -> None:
    """A row for each request, as a Parquet file."""
    import pyarrow.parquet as pq

    from etude.base.files import writing
    from etude.world.serve import request_table

    with writing(place.path, force=place.force) as temporary:
        pq.write_table(request_table(served), temporary, compression="zstd")
    say(f"wrote {place.path}")


# -- text --------------------------------------------------------------------------------------------------------------


def show_text(found: "text.TextServed") -> None:
    rows = found.rows()
    if len(rows) == 1:
        emit(_stream(rows[0]))
        _say_error(found.more)
        return
    from etude.world.serve.asked import text

    emit([_line(one) for one in rows])
    _say_error(found.more)
    holds = text.holds_rps(rows, text.HOLDS)
    within = f"{text.HOLDS:.0%} of the requests are within the limits up to {holds:.3g}/s" if holds else ""
    say(within or "no rate is within the limits")


def _stream(one: dict[str, Any]) -> dict[str, Any]:
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
    return shown


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


# -- images, memory ----------------------------------------------------------------------------------------------------


def show_images(found: "images.ImagesServed") -> None:
    emit([_image(one) for one in found.rows])


def _image(one: dict[str, Any]) -> dict[str, Any]:
    shown = {"requests/s": round(one["rate_rps"], 3)} if "rate_rps" in one else {}
    spent = one["device_s"]
    return shown | {
        "finished": one["finished"],
        "latency mean s": round(one["latency_s"]["mean"], 2),
        "p50 s": round(one["latency_s"]["p50"], 2),
        "p99 s": round(one["latency_s"]["p99"], 2),
        "within": f"{one['within_limits']:.1%}",
        "done/s": round(one["throughput_rps"], 4),
        "degree": round(one["mean_degree"], 2),
        "set-ups": one["set_ups"],
        "busy": f"{spent['busy'] / spent['all']:.1%}",
        "set-up": f"{spent['set_up'] / spent['all']:.2%}",
    }


def show_offloaded(served: "offload.OffloadServed") -> None:
    from etude.base.units import format_bytes

    found = served.found
    emit(
        {
            "prompt": f"{found['prefill_s']:.4g} s",
            "tokens out": f"{found['decode_s']:.4g} s, {found['tpot_s']:.4g} s each",
            "computing, loading": f"{found['compute_s']:.4g} s, {found['io_s']:.4g} s",
            "disk": f"{format_bytes(round(found['disk_read_bytes']))} read, "
            f"{format_bytes(round(found['disk_written_bytes']))} written, {found['disk_use']:.1%} of its bandwidth",
            "blocks": f"{found['hits']:,.0f} found in memory, {found['reads']:,.0f} read from the disk",
        }
    )


def show_split(found: "split.SplitServed") -> None:
    emit([_ratio(one) for one in found.rows])


def _ratio(one: dict[str, Any]) -> dict[str, Any]:
    embeddings, keys = (one[f"{kind}_hits"] + one[f"{kind}_misses"] for kind in ("embedding", "kv"))
    return {
        "ratio": round(one["ratio"], 3),
        "latency p50 ms": round(one["latency_s"]["p50"] * 1e3, 2),
        "p99 ms": round(one["latency_s"]["p99"] * 1e3, 2),
        "within": f"{one['within_limits']:.1%}",
        "embeddings found": f"{one['embedding_hits'] / max(embeddings, 1):.1%}",
        "keys found": f"{one['kv_hits'] / max(keys, 1):.1%}",
        "loaded GB": round(one["refill_bytes"] / 1e9, 3),
        "over time": " ".join(f"{ratio:.2f}" for ratio in one["ratios"][:12]),
    }


# -- workflows ---------------------------------------------------------------------------------------------------------


def show_flow(served: "workflow.FlowServed") -> None:
    found = served.figures
    shown = {"sessions": f"{found['sessions']:,} of {found['calls']:,} calls in {found['duration_s']:,.1f} s"}
    times = {"latency_s": "a session", "sum_s": "sum of its calls", "critical_path_s": "its longest chain"}
    for key, what in times.items():
        shown[what] = ", ".join(f"{name} {value:.4g} s" for name, value in found[key].items())
    shown["largest speed-up from parallel calls"] = f"{found['bound']:.2f} times"
    for name, one in found["models"].items():
        part = one["cache_hit_tokens"] / max(one["prompt_tokens"], 1)
        shown[name] = f"{one['calls']:,} calls, {one['prompt_tokens']:,} tokens in, {part:.1%} of them cached"
    if served.flow.budget:
        shown["over the budget"] = f"{found['violations']} of {found['sessions']}"
        worst = ", ".join(f"{name.removesuffix('_s')} {ratio:.3g}" for name, ratio in found["worst"].items())
        shown["worst ratio to its limit"] = worst
        shown["cost, label"] = f"{found['cost']:.4g}, {found['label']:.4g}"
    emit(shown)


def show_placed(found: "devices.Placed") -> None:
    emit([{name: row[name] for name in PLACED} for row in found.rows])


# -- measured runs -----------------------------------------------------------------------------------------------------


def show_beside(beside: "measured.Beside") -> None:
    """Measured and predicted figures side by side."""
    found = beside.found
    emit([
        {"": name, "measured s": round(found["measured"][name], 5), "predicted s": round(found["predicted"][name], 5),
         "error": f"{found['error'][name]:+.2%}"}
        for name in found["measured"]
    ])  # fmt: skip
    for note in found["assumed"]:
        say(f"note: {note}")


def show_rows(found: list[dict[str, Any]]) -> None:
    emit([_row(record) for record in found])


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
