from etude.steps.asked.ranks import RANKS_HELP as RANKS_HELP
from etude.steps.asked.ranks import ranks_of as ranks_of
