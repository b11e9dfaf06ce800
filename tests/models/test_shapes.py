"""Networks without values: the same shapes as with values, and nothing that only values need."""

import subprocess
import sys

import pytest
import torch

from common import models
from common.models.shapes import without_values

PROBE = """
import sys
from common import models
from common.models.shapes import without_values
with without_values():
    models.build("resnet8", (3, 32, 32), 10, seed=0)
assert "mpmath" not in sys.modules, "torch's decompositions need it"
"""


@pytest.mark.parametrize("name", ["resnet8", "lenet5", "mobilenetv2@0.5", "gru"])
def test_a_network_without_values_has_the_shapes_of_one_with_values(name: str) -> None:
    shape = models.MODELS[name.partition("@")[0]].input
    with without_values():
        empty = models.build(name, shape, 3, seed=0).state_dict()
    full = models.build(name, shape, 3, seed=0).state_dict()
    assert {k: (v.shape, v.dtype) for k, v in empty.items()} == {
        k: (v.shape, v.dtype) for k, v in full.items()
    }
    assert all(value.is_meta for value in empty.values())


def test_values_outside_of_meta_are_drawn_as_ever() -> None:
    with without_values():
        drawn = torch.empty(3, device="cpu").fill_(2.0)
    assert drawn.tolist() == [2.0] * 3


def test_a_network_without_values_imports_no_decompositions() -> None:
    subprocess.run([sys.executable, "-c", PROBE], check=True)
