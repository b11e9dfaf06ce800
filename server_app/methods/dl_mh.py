"""DL-MH, server half: map and mask, then weigh and distil."""

from typing import final

from common.methods.dl_mh import Options, Reply
from server_app.distillation.public_set import OwnClasses


@final
class DLMH(OwnClasses[Options, Reply]):
    """Y_g = Σ_i W_i M_i', where M_i' is M_i in the places of its classes and 0 elsewhere."""

    reply_type = Reply
