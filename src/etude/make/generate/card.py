"""The card of a generated job."""

from __future__ import annotations

from dataclasses import replace

from etude.make.generate.model.shape import Model
from etude.make.generate.plan import Plan
from etude.make.generate.serving.job import ServedJob
from etude.make.generate.train.job import Generated
from etude.model.card import Card, ModelCard, PlanCard, SoftwareCard, Workload


def card_of(found: Generated | ServedJob, *, made_by: str = "") -> Card:
    plan = found.plan
    done = _spread(plan)
    if isinstance(found, ServedJob):
        done = replace(
            done,
            workload=Workload.SERVING,
            requests=len(found.requests),
            tokens_per_step=sum(r.output for r in found.requests),
        )
    else:
        done = replace(
            done,
            workload=Workload.TRAINING,
            zero=plan.zero,
            schedule=plan.schedule if plan.pp > 1 else "",
            micro_batch=plan.micro_batch,
            global_batch=plan.batch,
            seq=plan.seq,
            recompute=plan.recompute if plan.twice else "",
            tokens_per_step=found.tokens // plan.steps,
            model_flops_per_step=found.model_flops // plan.steps,
        )
    return Card(
        name=found.job.name, model=_model(found.model, found.params), plan=done, software=SoftwareCard(tool=made_by)
    )


def _spread(plan: Plan) -> PlanCard:
    return PlanCard(
        ranks=plan.gpus, tp=plan.tp, cp=plan.cp, dp=plan.dp, pp=plan.pp, ep=plan.ep, precision=str(plan.precision)
    )


def _model(model: Model, params: int) -> ModelCard:
    return ModelCard(
        name=model.name,
        family=str(model.family),
        params=params,
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        experts=model.experts,
        vocab=model.vocab,
        assumed=model.assumed,
    )
