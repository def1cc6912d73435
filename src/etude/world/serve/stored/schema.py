"""What a folder of `etude serve` holds: types and ranges of its record and of its tables."""

from __future__ import annotations

from typing import Final

from etude.base.results import ResultSchema, TableSchema, unbounded
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

ABOUT: Final = "a served stream"
VERSION: Final = 2
ASKED: Final = keys().if_there()
"""What was asked of the command."""
SPREAD: Final = keys(**of_each(SECONDS, "mean p50 p90 p99 p999"))
"""A mean and percentiles."""
CURVE: Final = several(
    keys(
        rate_rps=AMOUNT,
        goodput_rps=AMOUNT,
        ttft_s=keys(p50=SECONDS, p99=SECONDS).or_none(),
        tpot_s=keys(p50=SECONDS, p99=SECONDS).or_none(),
    )
)

REQUESTS: Final = TableSchema(
    {
        **of_each(COUNT, "request prompt output preempted cache_hit_tokens kv_sent_bytes"),
        **of_each(WHOLE, "replica decode_replica codec"),
        **of_each(SECONDS, "arrival_s first_token_s finish_s queued_s scheduled_s"),
        "tpot_s": SECONDS.or_none(),
    },
    rows=1,
    ordered=(("arrival_s", "first_token_s", "finish_s"),),
)
PASSES: Final = TableSchema(
    {
        **of_each(COUNT, "replica start_ns end_ns prompt_tokens decode decode_keys blocks waiting cached"),
        "energy_nj": AMOUNT,
        **of_each(WHOLE.if_there(), "extra_branches extra_ns slack_ns"),
    },
    rows=1,
    ordered=(("start_ns", "end_ns"),),
)
REPLICAS: Final = TableSchema(
    {
        **of_each(COUNT, "replica requests passes blocks peak_blocks preemptions prompt_tokens_read tokens_out"),
        **of_each(COUNT, "cache_hit_tokens evicted_ids"),
        "busy_s": SECONDS,
        "energy_beyond_idle_j": AMOUNT,
    },
    rows=1,
)
SERVED: Final = ResultSchema(
    "etude served",
    VERSION,
    ABOUT,
    keys(
        **of_each(SOME, "requests"),
        **of_each(COUNT, "finished preemptions cache_hit_tokens stored_hit_tokens remote_hit_tokens read_tokens"),
        **of_each(COUNT, "prompt_tokens passes dummy_passes adapter_loads stolen"),
        **of_each(AMOUNT, "goodput_rps output_tokens_per_s kv_peak busy kv_fetched_bytes kv_sent_bytes"),
        **of_each(SECONDS, "kv_fetch_s replica_s"),
        **of_each(SPREAD, "ttft_s latency_s"),
        **of_each(AMOUNT.or_null(), "energy_j idle_energy_j step_imbalance"),
        duration_s=POSITIVE,
        within_limits=SHARE,
        imbalance=NUMBER,
        tpot_s=SPREAD.or_null(),
        itl_s=SPREAD.or_none(),
        transfer_s=SECONDS.or_null(),
        workload=keys(),
        changes=ANY.if_there(),
        tiers=keys(),
        engine=TEXT,
        rates=CURVE.if_there(),
        holds_rps=AMOUNT.or_none(),
        asked=ASKED,
    ),
    {"requests": REQUESTS, "passes": PASSES, "replicas": REPLICAS},
    (
        ("`energy_j` and `idle_energy_j` are not both there", lambda r: _both(r["energy_j"], r["idle_energy_j"])),
        ("`cache_hit_tokens` of no `prompt_tokens`", lambda r: not r["cache_hit_tokens"] or bool(r["prompt_tokens"])),
    ),
)


def _both(one: object, other: object) -> bool:
    return (one is None) == (other is None)


MODEL: Final = keys(
    **of_each(COUNT, "calls prompt_tokens output_tokens cache_hit_tokens passes preemptions stolen"), kv_peak=AMOUNT
)
WORKFLOW: Final = ResultSchema(
    "etude workflow",
    VERSION,
    ABOUT,
    keys(
        **of_each(TEXT, "workflow order"),
        **of_each(SPREAD, "latency_s sum_s critical_path_s"),
        **of_each(COUNT, "calls model_calls violations cache_hit_tokens"),
        sessions=SOME,
        duration_s=SECONDS,
        bound=AMOUNT,
        cost=AMOUNT,
        label=NUMBER.or_null(),
        broken=keys(COUNT),
        worst=keys(NUMBER.or_null()),
        models=keys(MODEL),
        asked=ASKED,
    ),
    {
        "sessions": TableSchema(
            {
                "session": COUNT,
                "tenant": TEXT,
                "cost": AMOUNT,
                "label": unbounded(NUMBER),
                **of_each(SECONDS, "begin_s end_s latency_s sum_s critical_path_s"),
            },
            rows=1,
        ),
        "tasks": TableSchema(
            {
                **of_each(COUNT, "session turn prompt output cache_hit_tokens"),
                **of_each(TEXT, "task tenant on"),
                **of_each(SECONDS, "ready_s begin_s end_s"),
                "model": FLAG,
                "cost": AMOUNT,
                "label": unbounded(NUMBER),
            },
            rows=1,
        ),
    },
)
IMAGES: Final = ResultSchema(
    "etude images",
    VERSION,
    ABOUT,
    keys(
        **of_each(COUNT, "finished steps set_ups"),
        **of_each(AMOUNT, "goodput_rps throughput_rps mean_degree"),
        requests=SOME,
        duration_s=POSITIVE,
        latency_s=SPREAD,
        within_limits=SHARE,
        device_s=keys(**of_each(AMOUNT, "busy set_up idle"), all=Shape("number", least=1e-12)),
        asked=ASKED,
    ),
    {
        "requests": TableSchema(
            {
                **of_each(SECONDS, "arrival_s end_s latency_s"),
                **of_each(COUNT, "frames height width steps"),
                "deadline_s": SECONDS.or_null(),
            },
            rows=1,
        ),
        "tasks": TableSchema(
            {
                **of_each(SECONDS, "start_s end_s set_up_s"),
                **of_each(COUNT, "steps degree"),
                "task": TEXT,
                **of_each(several(WHOLE), "requests devices"),
            },
            rows=1,
        ),
    },
)
SCHEMAS: Final = {schema.name: schema for schema in (SERVED, WORKFLOW, IMAGES)}
