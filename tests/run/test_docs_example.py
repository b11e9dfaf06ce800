"""The example of docs/extending.md is the one that the battery runs."""

from __future__ import annotations

import re

from tests.support.battery import PLUGIN

PAGE = PLUGIN.parents[1] / "docs" / "extending.md"


def test_every_file_of_the_example_is_printed_as_it_is() -> None:
    block = re.compile(r"^```\w+\n# (\S+\.\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    blocks = block.findall(PAGE.read_text())
    printed = {name: text for name, text in blocks if (PLUGIN / name).exists()}
    files = [*PLUGIN.rglob("*.py"), *PLUGIN.glob("*.toml")]
    assert printed.keys() == {
        file.relative_to(PLUGIN).as_posix() for file in files if file.name != "__init__.py"
    }
    for name, text in printed.items():
        assert text == (PLUGIN / name).read_text(), name
