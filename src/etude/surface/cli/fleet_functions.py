"""`etude fleet MOE.yaml` where the file has `experts_per_function`: experts that are called as functions."""

from typing import TYPE_CHECKING

from etude.surface.cli.output import emit, say

if TYPE_CHECKING:
    from etude.surface.api.fleets import SharedFleet


def show_functions(found: "SharedFleet", *, json: bool) -> None:
    record = found.figures
    if json:
        emit(record, json=True)
        return
    held, took = record["resident_byte_s"], record["latency_s"]
    rows = {
        "requests": f"{record['requests']:,} of {record['tenants']:,} tenants in {record['duration_s']:,.0f} s",
        "functions": f"{record['functions']:,} of {record['function_bytes'] / 1e9:,.3g} GB",
        "calls": f"{record['invocations']:,}, {record['cold']:,} cold, {record['invocation_s']:,.2f} s to send the "
        "tokens",
        "resident": f"{held['all'] / 1e9:,.0f} GB s, of which {held['dense'] / 1e9:,.0f} always",
        "compared with the full model": f"{record['of_full']:.1%}",
    }
    if took:
        rows["latency"] = (
            f"{took['mean']:,.3f} s, p95 {took['p95']:,.3f} s; first token {record['first_s']['mean']:,.3f} s"
        )
    else:
        say("note: no request arrived; use a longer duration")
    emit(rows)
