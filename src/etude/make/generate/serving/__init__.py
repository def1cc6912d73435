"""Serving: a job that answers requests, pass by pass."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.generate.serving.answers import first_and_last as first_and_last
    from etude.make.generate.serving.answers import last_stage as last_stage
    from etude.make.generate.serving.answers import product_flops as product_flops
    from etude.make.generate.serving.job import ServedJob as ServedJob
    from etude.make.generate.serving.job import check_serving_memory as check_serving_memory
    from etude.make.generate.serving.job import serve as serve
    from etude.make.generate.serving.options import Serving as Serving
    from etude.make.generate.serving.requests import Request as Request

__getattr__ = face(__name__)
