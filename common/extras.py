"""The packages that not every machine needs, and the extra with which each is installed."""

from __future__ import annotations

EXTRAS: dict[str, str] = {
    "ray": "sim",
    "sklearn": "sim",
    "matplotlib": "report",
    "pandas": "report",
    "tensorboard": "track",
    "wandb": "track",
    "mlflow": "track",
}
"""Import name to the extra of ``pyproject.toml`` that brings it."""


def missing(error: ModuleNotFoundError) -> str:
    """One line about a module that is not installed, with the command that installs it."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return str(error)
    return (
        f"{package} is not installed here, and this needs it: "
        f"pip install 'fedmosaic[{EXTRAS[package]}]'"
    )
