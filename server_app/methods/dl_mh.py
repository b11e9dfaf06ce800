"""DL-MH, server half: map and mask, then weigh and distil."""

from typing import final

from common.methods.dl_mh import Options, Up
from server_app.distil.public_set import OwnClasses


@final
class DLMH(OwnClasses[Options, Up]):
    """Y_g = Σ_i W_i M_i', where M_i' is M_i in the places of its classes and 0 elsewhere."""

    answers = Up
