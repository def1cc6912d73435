"""Requests that an engine or its benchmark client measured, each with its times and tokens."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.capture.ingest.requests.measured import MeasuredRequests as MeasuredRequests
    from etude.capture.ingest.requests.opening import holds_requests as holds_requests
    from etude.capture.ingest.requests.opening import measured_requests as measured_requests
    from etude.capture.ingest.requests.passes import with_passes as with_passes

__getattr__ = face(__name__)
