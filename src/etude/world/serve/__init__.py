"""Serving: streams of requests on replicas of a model, pass by pass, from the costs of passes."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.deployment import deployed as deployed
    from etude.world.serve.deployment import replica_plan as replica_plan
    from etude.world.serve.engine import Engine as Engine
    from etude.world.serve.results import request_table as request_table
    from etude.world.serve.results import summary as summary
    from etude.world.serve.serving import Served as Served
    from etude.world.serve.serving import serve as serve
    from etude.world.serve.workloads import request_stream as request_stream

__getattr__ = face(__name__)
