"""What is trained or served: the shape of a network."""

from typing import TYPE_CHECKING

from etude.base.faces import face

if TYPE_CHECKING:
    from etude.make.generate.model.hf_config import UnmappedConfigError as UnmappedConfigError
    from etude.make.generate.model.open import model_names as model_names
    from etude.make.generate.model.open import open_model as open_model
    from etude.make.generate.model.open import stored_as as stored_as
    from etude.make.generate.model.positions import positions_of as positions_of
    from etude.make.generate.model.shape import Family as Family
    from etude.make.generate.model.shape import Mixer as Mixer
    from etude.make.generate.model.shape import Model as Model

__getattr__ = face(__name__)
