"""Optional packages, and the extra that installs each of them."""

import importlib.util
from typing import Any

EXTRAS: dict[str, str] = {
    "datasets": "hub",
    "flwr_datasets": "hub",
    "pyarrow": "hub",
    "ray": "sim",
    "sklearn": "sim",
    "scipy": "report",
    "matplotlib": "report",
    "pandas": "report",
    "tensorboard": "track",
    "wandb": "track",
    "mlflow": "track",
    "dp_accounting": "privacy",
    "optuna": "sweep",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "prometheus_client": "metrics",
    "tokenizers": "text",
    "transformers": "text",
}
"""Import name of a package to the extra in ``pyproject.toml`` that installs it."""


def missing(error: ModuleNotFoundError) -> str:
    """Return a line about a module that is not installed, with the command that installs it."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return str(error)
    return (
        f"{package} is not installed here, and this needs it: "
        f"pip install 'fedmosaic[{EXTRAS[package]}]'"
    )


def check_installed(module: str) -> None:
    """Raise ``ValueError``, one line, if the top-level module of an extra is not installed."""
    if importlib.util.find_spec(module) is None:
        raise ValueError(missing(ModuleNotFoundError(name=module)))


def imported(module: str) -> Any:
    """Import and return a module of an extra.

    Raises ``ValueError``, one line, if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(missing(error)) from None
