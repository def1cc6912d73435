"""What a folder of `etude fleet` or `etude federate` holds: types and ranges of its record and tables, by kind of
outcome."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from etude.base.results import ResultSchema, Rule, TableSchema
from etude.base.shapes import (
    AMOUNT,
    ANY,
    COUNT,
    FLAG,
    NUMBER,
    POSITIVE,
    SECONDS,
    SHARE,
    SOME,
    TEXT,
    WHOLE,
    Shape,
    keys,
    of_each,
    several,
)
from etude.world.fleet.account import LOST
from etude.world.fleet.events import EFFECTS, SCOPES

NAME: Final = "etude fleet"
VERSION: Final = 2
ABOUT: Final = "a fleet run"
LEVELS: Final = keys(mean=SECONDS, p50=SECONDS, p99=SECONDS)
"""A mean and percentiles."""
ASKED: Final = keys().if_there()
CONTRACT: Final[dict[str, Shape]] = {
    "duration_s": POSITIVE,
    "useful_s": SECONDS,
    "useful_fraction": NUMBER,
    "interruptions": COUNT,
    "goodput_tokens_per_s": AMOUNT.or_null(),
    "lost_s": keys(**dict.fromkeys(LOST, SECONDS)).alone(),
    "energy_j": AMOUNT.or_null(),
    "cost": AMOUNT.or_null(),
    "jobs": several(keys()).if_there(),
    "asked": ASKED,
}
STREAMS: Final = keys(keys(within_limits=SHARE.or_none()))
JOBS: Final = TableSchema({"name": TEXT})
"""A row for each job; other columns by kind."""


def _outcome(tables: dict[str, TableSchema], *rules: Rule, **record: Shape) -> ResultSchema:
    return ResultSchema(NAME, VERSION, ABOUT, keys(**record), tables, rules)


EVENTS: Final = TableSchema(
    {
        "time_s": SECONDS,
        "name": TEXT,
        "effect": Shape("text", among=EFFECTS),
        "scope": Shape("text", among=SCOPES),
        "node": COUNT.or_null(),
        "nodes": COUNT,
        "duration_s": SECONDS,
        "factor": AMOUNT,
        "notice_s": SECONDS,
        "detect_s": SECONDS.or_null(),
        "hit": FLAG,
    }
)
INTERVAL: Final = keys(
    tier=TEXT,
    tried=several(keys(every_s=POSITIVE, useful_fraction=NUMBER), 1),
    **of_each(SECONDS, "save_s mtbf_s young_s daly_s best_s"),
)
STATES: Final = ("train", "redo", "checkpoint", "detect", "restart", "idle")
TRAINED: Final = _outcome(
    {
        "events": EVENTS,
        "states": TableSchema(
            {
                **of_each(SECONDS, "start_s end_s useful_s"),
                **of_each(COUNT, "step steps tokens gpus"),
                "state": Shape("text", among=STATES),
                "config": TEXT,
            },
            rows=1,
            ordered=(("start_s", "end_s"),),
        ),
        "jobs": JOBS,
    },
    ("`mttf_s` or `mttr_s` is not there, in spite of interruptions", lambda r: _times_known(r)),
    **CONTRACT | of_each(COUNT, "steps tokens lost_tokens") | of_each(POSITIVE, "step_s"),
    planned_tokens_per_s=AMOUNT,
    mttf_s=NUMBER.or_null(),
    mttr_s=NUMBER.or_null(),
    node_availability=NUMBER,
    device_s=keys(NUMBER),
    state_bytes=AMOUNT,
    tiers=several(keys()),
    configs=several(keys()),
    transitions=keys(COUNT),
    without_copy=COUNT.if_there(),
    interval=INTERVAL.if_there(),
)


def _times_known(record: Mapping[str, Any]) -> bool:
    return not record["interruptions"] or None not in (record["mttf_s"], record["mttr_s"])


USED: Final = of_each(SECONDS, "time_s") | of_each(COUNT, "running waiting") | {"devices": AMOUNT}
SHARED_JOBS: Final = TableSchema(
    {
        **of_each(TEXT, "name tenant"),
        **of_each(SECONDS, "arrival_s duration_s"),
        **of_each(SECONDS.or_null(), "start_s end_s wait_s recorded_wait_s"),
        **of_each(COUNT, "gpus gpu_milli preemptions"),
        **of_each(AMOUNT, "service_gpu_s set_up_gpu_s redone_gpu_s cost"),
    },
    rows=1,
)
SHARED: Final = {
    **CONTRACT,
    **of_each(COUNT, "devices nodes jobs_done jobs_refused jobs_stuck cold_starts waited_jobs"),
    "deadlines_missed": COUNT,
    "policy": TEXT,
    "utilisation": NUMBER,
    "fairness": NUMBER,
    "wait_s": LEVELS,
    "jct_s": LEVELS,
    "slowdown": keys(AMOUNT),
    "recorded_wait_s": LEVELS.or_null(),
    "device_s": keys(NUMBER),
    "cost_of_jobs": AMOUNT.or_null(),
    "streams": STREAMS.if_there(),
}
JOBS_SHARE: Final = _outcome({"jobs": SHARED_JOBS, "states": TableSchema(USED, rows=1)}, **SHARED)

STAGES: Final = TableSchema(
    {
        **of_each(COUNT, "tenant step"),
        "lag": WHOLE,
        **of_each(SECONDS, "start_s end_s"),
        "stage": Shape("text", among=("explore", "rollout", "train", "sync")),
    },
    rows=1,
)
ROLLED: Final = {
    **CONTRACT,
    **of_each(COUNT, "updates tenants samples staleness devices"),
    **of_each(SECONDS, "step_s rollout_s"),
    **of_each(SECONDS, "explore_s train_s tenant_s sync_s"),
    **of_each(AMOUNT, "updates_per_h tokens lost_tokens"),
    "goodput_tokens_per_s": AMOUNT,
    "utilisation": NUMBER,
    "rl_s": SECONDS.if_there(),
    "device_s": keys(NUMBER),
    "streams": STREAMS.if_there(),
}
MADE: Final = TableSchema({"time_s": SECONDS, **of_each(COUNT, "made waiting training")}, rows=1)
LENT: Final = TableSchema({"time_s": SECONDS, "devices": AMOUNT, "requests": COUNT}, rows=1, optional=True)
TENANTS: Final = TableSchema({"name": TEXT, "end_s": SECONDS, "steps": COUNT})
POST_TRAINED: Final = _outcome({"jobs": TENANTS, "stages": STAGES, "states": MADE, "lent": LENT}, **ROLLED)
MIXED: Final = _outcome(
    {
        "jobs": SHARED_JOBS,
        "job_states": TableSchema(USED, rows=1),
        "tenants": TENANTS,
        "stages": STAGES,
        "states": MADE,
        "lent": LENT,
    },
    **ROLLED,
    shared=keys(),
)

TIMES: Final = keys(mean=SECONDS, p99=SECONDS)
ASKED_FOR: Final = TableSchema(
    {
        **of_each(SECONDS, "arrival_s end_s latency_s"),
        **of_each(SECONDS.if_there(), "start_s wait_s first_s deadline_s"),
    }
)
SERVICE_JOBS: Final = TableSchema(
    {
        "name": TEXT,
        "requests": COUNT,
        "missed": NUMBER.or_none(),
        **of_each(SECONDS.or_none(), "latency_s latency_p95_s"),
    }
)
REQUESTED: Final = {**CONTRACT, "requests": COUNT, "latency_s": TIMES.or_null()}
BATCHES: Final = TableSchema({**of_each(SECONDS, "start_s end_s"), "state": TEXT, "requests": COUNT})


def _of_requests(kind: str, states: TableSchema, **more: Shape) -> ResultSchema:
    return _outcome(
        {"requests": ASKED_FOR, "states": states, "jobs": SERVICE_JOBS},
        **REQUESTED,
        kind=Shape("text", among=(kind,)),
        **more,
    )


SERVICES: Final = _of_requests("services", BATCHES, missed=SHARE, wait_s=TIMES, utilisation=NUMBER, policy=TEXT)
BACKBONE: Final = _of_requests("backbone", BATCHES, wait_s=TIMES, utilisation=NUMBER, hosted=COUNT, policy=TEXT)
FUNCTIONS: Final = _of_requests(
    "functions",
    TableSchema({"time_s": SECONDS, "cold": FLAG}),
    of_full=AMOUNT,
    cold=COUNT,
    invocations=COUNT,
    first_s=TIMES.or_null(),
)
EXPERTS: Final = _outcome(
    {
        "states": TableSchema(
            {
                **of_each(SECONDS, "start_s end_s"),
                "state": TEXT,
                **of_each(COUNT, "ranks tokens"),
                "tokens_per_s": AMOUNT,
            },
            rows=1,
        ),
        "events": TableSchema(
            {
                **of_each(SECONDS, "at_s pause_s"),
                "why": TEXT,
                "experts": COUNT,
                "again_s": SECONDS.or_null(),
                **of_each(COUNT.if_there(), "peer_bytes host_bytes storage_bytes"),
            }
        ),
        "jobs": JOBS,
    },
    **CONTRACT,
    **of_each(AMOUNT, "tokens_per_s planned_tokens_per_s"),
    ranks=COUNT,
    down_s=SECONDS,
    tokens=COUNT,
    kind=Shape("text", among=("experts",)),
)
RADIO: Final = _outcome(
    {
        "members": TableSchema({**of_each(TEXT, "name kind"), **of_each(COUNT, "asked moves"), "fulfilled": NUMBER}),
        "moves": TableSchema({"time_s": SECONDS, **of_each(TEXT, "member from to")}),
        "shares": TableSchema(
            {
                **of_each(TEXT, "member node"),
                **of_each(SECONDS, "start_s end_s"),
                **of_each(AMOUNT, "gpu cpu"),
                "paused": FLAG,
            }
        ),
    },
    **CONTRACT,
    **of_each(NUMBER, "fulfilled radio_fulfilled ai_fulfilled load fullest_gpu fullest_cpu"),
    **of_each(COUNT, "moves slots requests"),
    members=several(keys()),
    migrate=ANY,
    policy=TEXT,
)
FEDERATED: Final = _outcome(
    {
        "rounds": TableSchema(
            {
                **of_each(COUNT, "round asked answered"),
                **of_each(SECONDS, "start_s end_s warmup_s bound_s"),
                **of_each(SECONDS, "server_busy_s server_wait_s"),
                **of_each(AMOUNT, "down_bytes up_bytes"),
                **of_each(NUMBER, "delivered covered untrained"),
                "last": TEXT.or_null(),
            },
            rows=1,
            ordered=(("start_s", "end_s"),),
        ),
        "clients": TableSchema(
            {
                "name": TEXT,
                "step_s": SECONDS,
                **of_each(AMOUNT, "down_bytes_per_s up_bytes_per_s"),
                **of_each(NUMBER, "available share"),
                **of_each(WHOLE, "group label"),
                **of_each(COUNT, "there drawn taken"),
                "cut": WHOLE.if_there(),
                **of_each(SECONDS.if_there(), "forward_s backward_s server_s"),
                "adapter_bytes": AMOUNT.if_there(),
            },
            rows=1,
        ),
    },
    ("`by_deadline` is more than `rounds`", lambda r: r["by_deadline"] <= r["rounds"]),
    **of_each(SOME, "rounds clients"),
    **of_each(COUNT, "drawn answered by_deadline never_taken"),
    **of_each(AMOUNT, "down_bytes up_bytes model_bytes"),
    **of_each(NUMBER, "available share untrained"),
    duration_s=SECONDS,
    round_s=LEVELS,
    asked=ASKED,
    split=keys().if_there(),
    participation=keys(**of_each(COUNT, "min max"), **of_each(AMOUNT, "mean variance")),
    **of_each(NUMBER.or_null(), "label_coverage of_bound warmup_share delivered bound_s"),
)
OUTCOMES: Final = {
    "train": TRAINED,
    "jobs": JOBS_SHARE,
    "rl": POST_TRAINED,
    "jobs and rl": MIXED,
    "services": SERVICES,
    "backbone": BACKBONE,
    "functions": FUNCTIONS,
    "experts": EXPERTS,
    "radio": RADIO,
    "federated": FEDERATED,
}


def outcome_of(record: Mapping[str, Any], tables: Collection[str]) -> str:
    """The kind of outcome that has this record and these tables."""
    if "rounds" in tables:
        return "federated"
    if "kind" in record:
        return str(record["kind"])
    if "shares" in tables:
        return "radio"
    if "events" in tables:
        return "train"
    if "stages" in tables:
        return "jobs and rl" if "job_states" in tables else "rl"
    return "jobs"
