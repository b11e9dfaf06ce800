"""DL-MH, client half: as DL-SH, about the client's own classes."""

from typing import final

from client_app.public_set import Teacher
from common.methods.dl_mh import Down, Options, Up


@final
class DLMH(Teacher[Options, Down]):
    """Predictions and confidences, with the schema d."""

    receives, answers = Down, Up
