"""Text of unknown origin, made fit to print.

Model names, class names, metric names and reasons of failure come from clients. A terminal obeys
escape sequences, so control characters are shown as a sign instead of being sent.
"""

from __future__ import annotations

import unicodedata


def clean(text: object, limit: int = 200) -> str:
    """One line of at most ``limit`` characters; white space is one blank, the unprintable is �.

    >>> clean("ok\\x1b[2J\\n  done")
    'ok�[2J done'
    """
    shown = "".join(
        " " if c.isspace() else "�" if unicodedata.category(c)[0] == "C" else c
        for c in str(text)[: 8 * limit]
    )
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
