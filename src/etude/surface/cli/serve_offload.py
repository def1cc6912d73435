"""`etude serve --offload`: keys and values below the device."""

from typing import Any

from etude.base.errors import UsageError
from etude.surface.cli.output import emit


def show_offloaded(
    requests: Any, cost: Any, system: Any, words: str, memory: str, kept: tuple[int, float], *, json: bool
) -> int:
    """`kept`: layers of the model, and bytes of keys and values of a token in all of them."""
    from etude.base.units import format_bytes, parse_bytes
    from etude.world.serve.offload import offloaded

    what, _, path = words.partition(" path=")
    if what != "kv" or not path:
        raise UsageError(f"--offload: `{words}`", hint='"kv path=dual"; known paths: cache, direct, dual')
    layers, token_bytes = kept
    found = offloaded(
        requests, cost, system, path=path, memory_bytes=parse_bytes(memory), layers=layers, token_bytes=token_bytes
    )
    if json:
        emit(found, json=True)
        return 0
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
    return 0
