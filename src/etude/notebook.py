"""`%load_ext etude.notebook`: see `etude.base.notebook`."""

from etude.base.notebook import load_ipython_extension as load_ipython_extension
from etude.base.notebook import register as register
