"""A flat run config as ``config.toml`` has it."""

import json
from collections.abc import Mapping

from common.files import in_order
from common.parse import known_keys
from common.section import Value


def to_toml(flat: Mapping[str, Value]) -> str:
    """The flat config as nested TOML: the known keys in their order, then all others."""
    known = [key for key in known_keys() if key in flat]
    tables: dict[str, list[str]] = {"": []}
    for key in (*known, *sorted(flat.keys() - set(known), key=in_order)):
        table, _, leaf = key.rpartition(".")
        line = f"{leaf} = {json.dumps(flat[key], ensure_ascii=False)}"
        tables.setdefault(table, []).append(line)
    parts = ["\n".join([f"[{table}]"] * bool(table) + lines) for table, lines in tables.items()]
    return "\n\n".join(parts) + "\n"
