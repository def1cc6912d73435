"""Serving: a job that answers requests, pass by pass."""

from typing import TYPE_CHECKING

from etude.faces import face

if TYPE_CHECKING:
    from etude.generate.serving.answers import first_and_last as first_and_last
    from etude.generate.serving.answers import last_stage as last_stage
    from etude.generate.serving.answers import product_flops as product_flops
    from etude.generate.serving.job import ServedJob as ServedJob
    from etude.generate.serving.job import check_serving_memory as check_serving_memory
    from etude.generate.serving.job import serve as serve
    from etude.generate.serving.options import Serving as Serving
    from etude.generate.serving.requests import Request as Request

__getattr__ = face(__name__)
