"""Lists of events that a run replays."""

from pathlib import Path


def listed(folder: Path, text: str) -> str:
    """Write a list of events and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "events.toml"
    path.write_text(text)
    return str(path)
