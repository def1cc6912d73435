"""What is asked of fleets: the parameters of each of their verbs, where results are written, and what a reader sees.

train       days of a training job
shared      what shares one set of devices
experts     a serving group of experts
federate    federated rounds
kept        folders of results
"""
