"""fleet_page(runs): one fleet run, or several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from etude.tell.report.fleet.federated import federated_cards, federated_sections, federated_verdict
from etude.tell.report.fleet.radio import radio_cards, radio_sections, radio_verdict
from etude.tell.report.fleet.rl import rl_cards, rl_sections, rl_verdict
from etude.tell.report.fleet.serving import serving_page
from etude.tell.report.fleet.sharing import beside_section, sharing_sections, sharing_verdict
from etude.tell.report.fleet.training import duration, hours_section, training_sections, training_verdict
from etude.tell.view.page import Figure, Page, PageSection

Run = tuple[str, dict[str, Any], dict[str, pa.Table]]
"""Name, record and tables of `etude fleet -o FOLDER`."""


def fleet_page(runs: Sequence[Run], *, title: str, made_by: str = "Etude") -> Page:
    """The first run is shown in full; of several, the hours of all are side by side."""
    _, record, tables = runs[0]
    if "rounds" in tables:
        return _rounds_page(runs, title=title, made_by=made_by)
    if "kind" in record:
        return serving_page(runs, title=title, facts=_facts(record.get("asked", {})), made_by=made_by)
    if "shares" in tables:
        return _radio_page(runs, title=title, made_by=made_by)
    trained, by_stage = "events" in tables, "stages" in tables
    asked = record.get("asked", {})
    sections: list[PageSection] = [hours_section([(name, one) for name, one, _ in runs], trained=trained)]
    if len(runs) > 1 and not trained and all("utilisation" in one for _, one, _ in runs):
        sections.append(beside_section([(name, one) for name, one, _ in runs]))
    if trained:
        verdict, more = training_verdict(record), training_sections(record, tables)
    elif by_stage:
        verdict, more = rl_verdict(record), rl_sections(record, tables)
    else:
        verdict, more = sharing_verdict(record), sharing_sections(record, tables)
    sections += more
    what = asked.get("model") or asked.get("cluster") or "a fleet"
    return Page(
        title=title,
        subtitle=f"{what} for {duration(record['duration_s'])}, simulated from the costs of steps"
        if trained
        else f"{record['updates'] if by_stage else record['jobs_done']:,} {'updates' if by_stage else 'jobs'} on "
        f"{record['devices']:,} devices, simulated",
        verdict=verdict,
        cards=_cards(record, rl_cards(record) if by_stage else [], trained=trained),
        sections=tuple(sections),
        facts=_facts(asked),
        made_by=made_by,
    )


def _rounds_page(runs: Sequence[Run], *, title: str, made_by: str) -> Page:
    record = runs[0][1]
    asked = record.get("asked", {})
    return Page(
        title=title,
        subtitle=f"{asked.get('model') or 'a model'}, {record['rounds']:,} federated rounds of {record['clients']:,} "
        "clients, simulated",
        verdict=federated_verdict(record),
        cards=federated_cards(record),
        sections=tuple(federated_sections(runs)),
        facts=_facts(asked),
        made_by=made_by,
    )


def _radio_page(runs: Sequence[Run], *, title: str, made_by: str) -> Page:
    record = runs[0][1]
    return Page(
        title=title,
        subtitle=f"{len(record['members']):,} radio functions and AI services for {duration(record['duration_s'])}, "
        "simulated",
        verdict=radio_verdict(record),
        cards=radio_cards(record),
        sections=tuple(radio_sections(runs)),
        facts=_facts(record.get("asked", {})),
        made_by=made_by,
    )


def _facts(asked: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in asked.items() if value != "")


def _cards(record: dict[str, Any], more: list[Figure], *, trained: bool) -> tuple[Figure, ...]:
    found = [Figure("Useful", f"{record['useful_fraction']:.1%}", "of the time", "compute"), *more]
    if more:
        pass
    elif trained:
        planned = record["planned_tokens_per_s"]
        found.append(Figure("Tokens kept", f"{record['goodput_tokens_per_s']:,.0f} /s", f"{planned:,.0f} as planned"))
        found.append(Figure("Interruptions", f"{record['interruptions']:,}", _between(record)))
    else:
        wait, jct = record["wait_s"], record["jct_s"]
        found.append(Figure("Waiting, mean", duration(wait["mean"]), f"p99 {duration(wait['p99'])}", "idle"))
        found.append(Figure("Arrival to end, mean", duration(jct["mean"]), f"p99 {duration(jct['p99'])}"))
        found.append(Figure("Preemptions", f"{record['interruptions']:,}"))
    if record.get("energy_j"):
        found.append(Figure("Energy", f"{record['energy_j'] / 3.6e9:,.3g} MWh"))
    if record.get("cost"):
        found.append(Figure("Cost", f"{record['cost']:,.0f} $"))
    return tuple(found)


def _between(record: dict[str, Any]) -> str:
    if not record["interruptions"]:
        return ""
    return f"{duration(record['mttf_s'])} of work each, then {duration(record['mttr_s'])} down"
