"""How a job is simulated, as it is given by name: `--jitter compute=0.05`."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.run.simulate.settings.by_name import options_by_name as options_by_name
    from etude.run.simulate.settings.declared import SimulationSettings as SimulationSettings
    from etude.run.simulate.settings.read import check_network as check_network
    from etude.run.simulate.settings.read import named_options as named_options
    from etude.run.simulate.settings.read import unused_by as unused_by
    from etude.run.simulate.settings.texts import pairs as pairs

__getattr__ = face(__name__)
