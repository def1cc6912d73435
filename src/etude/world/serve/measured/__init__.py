"""Measured runs of engines, simulated again: measured and predicted values."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.world.serve.measured.again import replayed as replayed
    from etude.world.serve.measured.bench import bench_result as bench_result
    from etude.world.serve.measured.bench import beside_bench as beside_bench
    from etude.world.serve.measured.diffusion import asked_images as asked_images
    from etude.world.serve.measured.power import power_rows as power_rows
    from etude.world.serve.measured.rows import predict_rows as predict_rows

__getattr__ = face(__name__)
