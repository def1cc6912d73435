"""What is asked of serving: the parameters of each of its verbs, what they come to before any work, and its result.

stream      requests of a file, of a generator, or drawn
service     a model, its replicas, and what is between them
text        streams of text requests: `etude.serve`
serve, images, workflow, devices, offload, split, measured
            a verb each: its declaration, a frozen value of all that its run reads, what happened, what is shown
kept, window
            folders of results, and moments of a stream as jobs
job         a job that serves: `generate serve` and `predict serve`
"""
