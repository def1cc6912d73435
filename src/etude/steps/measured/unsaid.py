"""What the case of a row has that the row does not state, besides what its recipe says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from etude.steps.measured.row_figures import SECONDS
from etude.steps.measured.row_models import known_model, named_model

if TYPE_CHECKING:
    from etude.steps.measured.rows import Case

NARROW: Final = ("fp8", "fp4")
AXES: Final = ("tp", "pp", "cp", "ep")


def unsaid(row: Mapping[str, str], case: Case, *, spare: float, system: bool = False) -> list[str]:
    """One text for each assumption; `system`: it was given beside the rows. `spare`: memory that a plan may need,
    relative to what there is."""
    said = [] if system else [f"system {case.system.name} for the GPU `{row['gpu_type']}`"]
    said += [] if row.get("year") else [f"year {case.year}"]
    precision = str(case.plan.precision)
    said += [] if row.get("precision", "").lower().startswith(precision) else [f"precision {precision}"]
    if precision in NARROW and precision not in case.system.device.peak_flop_per_s:
        said.append(f"products in 16 bits: {case.system.device.name} has no units for {precision}")
    if row.get("tp") or row.get("pp"):
        said += [f"{axis} 1" for axis in AXES if not row.get(axis)]
    said += [] if row.get("gpus") else [f"{case.plan.gpus:,} GPUs: data times tensor, pipeline and context parallel"]
    said += _of_model(row, case)
    if not (row.get("micro_batch") and row.get("recompute")):
        said.append(f"a plan may need {spare - 1:.0%} more memory than there is, being estimated")
    if (row.get("unit") or "").strip().lower() not in SECONDS:
        said.append(f"the time of the step is derived from `{row.get('measured_metric')}` in {row.get('unit')}")
    return said


def _of_model(row: Mapping[str, str], case: Case) -> list[str]:
    model = case.model
    if named_model(row) is not None:
        return [f"model {model.name} of the catalogue"]
    if known_model(row) is not None:
        return [f"model {model.name} of the catalogue, which has the shape of the row"]
    gate, head = "gated" if model.gated else "plain", "tied to" if model.tied else "apart from"
    by = "by the number of parameters" if row.get("params") else "by its name and widths"
    said = [
        f"model of the row's shape, {by}: {gate} feed-forward, {model.kv} heads of keys and values, output layer "
        f"{head} the embedding, {model.norm} norms, positions {model.positions}"
    ]
    if model.experts:
        width = model.expert_ffn or model.ffn
        said.append(f"{model.experts} experts of width {width:,}, {model.top_k} for a token, equally many tokens each")
    return said if row.get("heads") else [*said, f"{model.heads} heads"]
