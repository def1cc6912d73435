"""What ASTRA-sim needs of files and a Job does not hold."""

from etude.generate import Plan, generate
from etude.generate.model import open_model
from etude.model.schema import Kind
from etude.transform.dialects.astra import for_astra


def test_groups_are_numbers_from_one_and_copies_say_an_operation():
    job = generate(open_model("gpt2"), Plan(tp=2, pp=2, gpus=8)).job
    kinds = {"tp": 4, "dp": 4, "ends": 4, "world": 1}
    assert sorted(job.groups.names) == sorted(f"{kind}.{i}" for kind, many in kinds.items() for i in range(many))
    copies = sum(int(((t.kind == int(Kind.COMP)) & (t.flops == 0)).sum()) for t in job.traces)
    assert copies > 0
    written = for_astra(job)
    assert written.groups.names == tuple(str(i + 1) for i in range(len(job.groups)))
    assert (written.groups.members == job.groups.members).all()
    for before, after in zip(job.traces, written.traces, strict=True):
        compute = before.kind == int(Kind.COMP)
        assert (after.flops[compute] >= 1).all()
        assert (after.flops[before.flops > 0] == before.flops[before.flops > 0]).all()
        assert (after.flops[~compute] == before.flops[~compute]).all()
