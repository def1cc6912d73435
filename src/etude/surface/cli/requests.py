from etude.steps.asked import requests
from etude.surface.verb import Verb

VERBS = (
    Verb(
        "requests",
        requests.RequestsInput,
        requests.request_inputs,
        requests.run_requests,
        record=requests.record,
        table=requests.table,
        tool=True,
    ),
)
