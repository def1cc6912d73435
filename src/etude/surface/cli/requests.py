from etude.steps.asked import requests
from etude.surface.verb import Verb

VERBS = (
    Verb(
        name="requests", asks=requests.RequestsInput, inputs=requests.request_inputs, run=requests.run_requests,
        record=requests.record, table=requests.table, tool=True,
    ),
)  # fmt: skip
