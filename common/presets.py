"""Fleets that papers use, by name: ``fleet = "h-het"`` stands for its list."""

from __future__ import annotations

FLEETS: dict[str, str] = {
    "hom": "wrn-40-1",
    "l-het": "resnet32,shufflenetv2,resnet20",
    "h-het": "resnet34,mobilenetv2,resnet18,shufflenetv2,wrn-40-1,wrn-40-1",
    "fedin": "resnet10,resnet14,resnet18,resnet22,resnet26",
}
"""FedORION's homogeneous, lower and higher heterogeneous fleets (section 4.2.1, the released code);
FedIN's five depths (section IV)."""


def entries(fleet: str) -> tuple[str, ...]:
    """The architectures of a fleet: a preset's, or those of a comma-separated list."""
    listed = FLEETS.get(fleet.strip(), fleet)
    return tuple(entry.strip() for entry in listed.split(",") if entry.strip())
