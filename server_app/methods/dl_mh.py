"""DL-MH, server half: map predictions to all classes, weight them and distil them."""

from typing import final

from common.methods.dl_mh import Options, Reply
from server_app.distillation.public_set import OwnClasses


@final
class DLMH(OwnClasses[Options, Reply]):
    """Server with Y_g = Σ_i W_i M_i', where M_i' is M_i in the columns of its classes, else 0."""
