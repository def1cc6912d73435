from functools import partial

from etude.surface.cli import main
from etude.surface.verb import Verb
from etude.tell.demo.asked import Demo, inputs, run

VERBS = (Verb("demo", Demo, inputs, partial(run, execute=main), reads=lambda result: None),)
