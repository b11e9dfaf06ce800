"""How a report writes: 93.1 %, 4.20 MB, 3 min 20 s, 1,234, a dash where there is none; clean text.

Model names, class names, metric names and reasons of failure come from clients. A terminal obeys
escape sequences, so control characters are shown as a sign instead of being sent.
"""

import math
import unicodedata

NONE = "–"


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


def percent(fraction: float | None, digits: int = 1) -> str:
    """``0.931`` -> ``93.1 %``."""
    if fraction is None or not math.isfinite(fraction):
        return NONE
    return f"{100 * fraction:.{digits}f} %"


def size(n_bytes: float | None) -> str:
    """Bytes in decimal units (1 kB = 1,000 B), as the papers count them."""
    return _in_units(n_bytes, "B", "kB", "MB", "GB", "TB")


def operations(n: int) -> str:
    """Floating-point operations: ``1234567`` -> ``1.23 MFLOP``."""
    return _in_units(n, "FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


def _in_units(value: float | None, *units: str) -> str:
    """Three digits and the unit, each a thousand times the one before."""
    if value is None or not math.isfinite(value):
        return NONE
    power = 0
    while abs(value) >= 999.5 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    digits = 0 if power == 0 or abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f} {units[power]}"


def duration(seconds: float | None) -> str:
    """``0.42`` -> ``0.42 s``, ``200`` -> ``3 min 20 s``, ``7260`` -> ``2 h 01 min``."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 59.95:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def number(value: object) -> str:
    """An integer with thousands separators, a float with four significant digits."""
    if value is None:
        return NONE
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if math.isfinite(value) else "not finite"
