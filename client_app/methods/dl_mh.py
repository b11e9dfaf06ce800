"""DL-MH, client half: as DL-SH, about the client's own classes."""

from typing import final

from client_app.bases.public_set import Teacher
from common.methods.dl_mh import Options, Reply, Request


@final
class DLMH(Teacher[Options, Request]):
    """Predictions and confidences, with the schema d."""

    request_type, reply_type = Request, Reply
