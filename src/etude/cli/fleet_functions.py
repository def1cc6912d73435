"""`etude fleet MOE.yaml` where the file has `experts_per_function`: experts that are called as functions."""

from pathlib import Path

from etude.cli.fleet_folder import folder
from etude.cli.output import emit, say
from etude.errors import UsageError


def called_as_functions(
    path: str, policy: str, switch: str, out: Path | None, *, seed: int, force: bool, json: bool
) -> int:  # fmt: skip
    from etude.fleet.functions import call_functions, functions_record, functions_tables, read_functions

    if policy or switch:
        raise UsageError("--policy and --switch apply only to jobs that share a cluster", where=path)
    found = call_functions(read_functions(path), seed=seed)
    record = functions_record(found)
    folder(out, functions_tables(found, record), record, {"file": path, "seed": seed}, force=force)
    if json:
        emit(record, json=True)
        return 0
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
    return 0
