"""DL-MH, client half: as DL-SH, with a head for the client's own classes."""

from typing import final

from client_app.bases.public_set import Teacher
from common.methods.dl_mh import Options, Reply, Request


@final
class DLMH(Teacher[Options, Request]):
    """Client that sends predictions for its classes, their schema d, and confidences."""

    reply_type = Reply
