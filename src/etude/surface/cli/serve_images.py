"""`etude serve MODEL --degree`: images and videos, denoised on groups of devices."""

from pathlib import Path
from typing import Any

from etude.base.errors import UsageError
from etude.surface.cli.output import emit, say


def show_images(
    model: str, system: str, requests: str, degree: str, *, gpus: int, rates: list[float], limits: dict[str, Any],
    drawn: dict[str, Any], encode: str, set_up_ns: int, batch: int, order: str, stack: str, out: Path | None,
    force: bool, json: bool,
) -> int:  # fmt: skip
    """`drawn`: how requests are drawn, or taken from a file."""
    from etude.base.units import parse_time
    from etude.world.serve.images import degree_rule, image_costs, image_stream, image_summary, serve_images
    from etude.world.serve.pools import function_of
    from etude.world.serve.stored import write_served

    if not requests:
        raise UsageError("no requests are given", hint='--requests FILE, or "mix:1024x1024@28=0.7,480x832x81@50=0.3"')
    if set(limits) != {""} or set(limits[""]) - {"latency_s"}:
        raise UsageError("--slo: images have one limit", hint="latency=60s, or the column deadline")
    rule = degree_rule(degree, gpus, function_of, set_up_ns=set_up_ns, batch=batch, order=order)
    found, costs = [], None
    for rate in rates or [0.0]:
        stream = image_stream(requests, rate_per_s=rate, **drawn)
        if costs is None:
            costs = image_costs(
                model, system, stream.sizes, rule.degrees, stack=stack, batch=batch, encode_ns=parse_time(encode)
            )
        served = serve_images(stream, costs, gpus, rule)
        one = image_summary(served, latency_limit_s=limits[""].get("latency_s", 0.0))
        found.append(({"rate_rps": rate} if len(rates) > 1 else {}) | one)
    assert costs is not None
    if out is not None:
        if len(found) > 1:
            raise UsageError("-o needs a single rate", hint="one --rate with -o")
        asked = {"model": model, "system": system, "requests": requests, "degree": degree, "gpus": gpus, "stack": stack,
                 "rate": rates[0] if rates else 0.0, "batch": batch, **drawn}  # fmt: skip
        write_served(served, found[0] | {"asked": asked}, out, force=force)
        say(f"wrote {out}")
    steps = [
        {"frames": f, "height": h, "width": w, "decode_s": float(costs.decode_ns[k]) / 1e9,
         "step_s": {str(d): float(t) / 1e9 for d, t in zip(costs.degrees, costs.step_ns[k, :, 0], strict=True) if t}}
        for k, (f, h, w) in enumerate(stream.sizes.tolist())
    ]  # fmt: skip
    if json:
        emit({"rates": found, "sizes": steps} if len(found) > 1 else found[0] | {"sizes": steps}, json=True)
        return 0
    emit([_row(one) for one in found])
    return 0


def _row(one: dict[str, Any]) -> dict[str, Any]:
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
