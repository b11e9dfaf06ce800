"""The run cannot go on, and the user must hear why in one line."""

from __future__ import annotations


class Stopped(RuntimeError):
    """Raised with a one-line reason; what was reached is kept in the checkpoint."""
