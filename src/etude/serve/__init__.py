"""Serving: streams of requests on replicas of a model, pass by pass, from the costs of passes."""

from typing import TYPE_CHECKING

from etude.faces import face, verb

if TYPE_CHECKING:
    from etude.serve.deployment import deployed as deployed
    from etude.serve.deployment import replica_plan as replica_plan
    from etude.serve.engine import Engine as Engine
    from etude.serve.results import request_table as request_table
    from etude.serve.results import summary as summary
    from etude.serve.serving import Served as Served
    from etude.serve.serving import serve as serve
    from etude.serve.workloads import request_stream as request_stream

__getattr__ = face(__name__)
verb(__name__)
