"""Device profiles: presets of phones, boards and servers, and the device of a profile by name.

A preset's figures are peak rates and memory by its sources; training reaches the share e of the
peak. e depends on the network as much as on the device: measure it with ``fedmosaic profile``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from common.settings.clock import Network, Profile
from common.settings.plugins import nearest

NETWORKS: Mapping[Network, tuple[float, float, float]] = {
    "wifi": (34.5e6, 26.3e6, 0.005),
    "lan": (100e6, 100e6, 0.005),
    "4g": (20e6, 5e6, 0.05),
}
"""Bits per second down and up, and seconds of latency. ``wifi``: medians of 19 users (FLASH);
``4g`` and the latencies are assumed."""
STEP_OVERHEAD = 0.001  #: seconds of a step beside its operations, where a profile has none
MNN = "measured training of AlexNet, on-device training with MNN; memory and power assumed"
SCALED = "phone-high, scaled by FLASH's measured steps; memory and power assumed"
LINPACK = "twice a measured double-precision Linpack, and its power (top500 benchmarks of boards)"
SHEET = "data sheet: cores x clock x 2; e assumed"
FLASH = "measured steps of LEAF's FEMNIST network with DL4J (FLASH); memory as the phones"


def _preset(
    flops: float, efficiency: float, memory: float, power: float | None, **more: object
) -> Profile:
    """Return a profile with Wi-Fi, unless ``more`` has another network."""
    fields = {"flops": flops, "efficiency": efficiency, "memory": memory, "power": power}
    return Profile.model_validate({**fields, "network": "wifi", **more})


PRESETS: Mapping[str, tuple[Profile, str]] = {
    "phone-high": (_preset(30e9, 1.0, 8e9, 4.0), MNN),
    "phone-mid": (_preset(9.1e9, 1.0, 4e9, 3.0), SCALED),
    "phone-low": (_preset(3.3e9, 1.0, 2e9, 2.0), SCALED),
    "pi4": (_preset(24e9, 0.3, 4e9, 7.2, network="lan"), LINPACK),
    "pi5": (_preset(70e9, 0.3, 8e9, 12.7, network="lan"), LINPACK),
    "jetson-nano": (
        _preset(236e9, 0.3, 4e9, 10.0, network="lan", memory_bandwidth=25.6e9),
        SHEET,
    ),
    "jetson-orin-nano": (
        _preset(1.28e12, 0.3, 8e9, 15.0, network="lan", memory_bandwidth=68e9),
        SHEET,
    ),
    "jetson-orin-nano-super": (
        _preset(2.09e12, 0.3, 8e9, 25.0, network="lan", memory_bandwidth=102e9),
        SHEET,
    ),
    "laptop": (_preset(178e9, 0.3, 16e9, 42.0), LINPACK),
    "desktop-gpu": (
        _preset(12.7e12, 0.3, 12e9, 170.0, network="lan", memory_bandwidth=360e9),
        f"RTX 3060, {SHEET}",
    ),
    "server-gpu": (
        _preset(19.5e12, 0.3, 40e9, 400.0, network="lan", memory_bandwidth=1555e9),
        f"A100 SXM without tensor cores, {SHEET}",
    ),
    "server-gpu-h100": (
        _preset(66.9e12, 0.3, 80e9, 700.0, network="lan", memory_bandwidth=3350e9),
        f"H100 SXM without tensor cores, {SHEET}",
    ),
    "dl4j-high": (_preset(5.77e9, 1.0, 8e9, None), FLASH),
    "dl4j-mid": (_preset(1.76e9, 1.0, 4e9, None), FLASH),
    "dl4j-low": (_preset(0.63e9, 1.0, 2e9, None), FLASH),
}
"""Profile and source of each preset, by name."""


@final
@dataclass(frozen=True)
class Device:
    """A device with all values of its profile; units as in ``Profile``."""

    name: str
    flops: float
    down: float
    up: float
    efficiency: float = 1.0
    shares: Mapping[str, float] | None = None
    latency: float = 0.0
    step_overhead: float = STEP_OVERHEAD
    memory: float | None = None
    memory_bandwidth: float | None = None
    power: float | None = None
    radio_power: float | None = None
    available: str = ""

    def rate(self, architecture: str) -> float:
        """Return F · e, the operations per second with this architecture."""
        shares = self.shares or {}
        prefixes = [prefix for prefix in shares if architecture.startswith(prefix)]
        return self.flops * (shares[max(prefixes, key=len)] if prefixes else self.efficiency)


def device(name: str, tables: Mapping[str, Profile]) -> Device:
    """Return the device of a profile; ``tables``: the run's ``[profile.NAME]`` tables.

    Raises ``ValueError``, one line, for an unknown profile, a value that is missing, and shares of
    ``efficiency-by`` that are no numbers in (0, 1].
    """
    values = _values(name, tables, ())
    if network := values.pop("network", None):
        values = dict(zip(("down", "up", "latency"), NETWORKS[network], strict=True)) | values
    if missing := [key for key in ("flops", "down", "up") if key not in values]:
        raise ValueError(
            f"[profile.{name}] has no {missing[0]}, and no preset with it as base"
            + (" and no network" if missing[0] != "flops" else "")
        )
    shares = values.pop("efficiency_by", None)
    return Device(name=name, shares=_shares(name, shares) if shares else None, **values)


def is_assumed(name: str, tables: Mapping[str, Profile]) -> bool:
    """Return whether the efficiency of a profile is a preset's, which was not measured."""
    while own := tables.get(name):
        if own.efficiency is not None or own.efficiency_by:
            return False
        if own.base in (None, name):
            break
        name = str(own.base)
    return name in PRESETS and PRESETS[name][0].efficiency != 1


def _values(name: str, tables: Mapping[str, Profile], seen: tuple[str, ...]) -> dict[str, Any]:
    """Return the set values of a profile, of its base and of the preset of its name."""
    if name in seen:
        raise ValueError(f"[profile.{name}] has the bases {' → '.join([*seen, name])}, a circle")
    own = tables.get(name)
    base = own.base if own else None
    if own is None and name not in PRESETS:
        known = sorted({*PRESETS, *tables})
        raise ValueError(
            f"profile {name!r} is unknown{nearest(name, known)}; profiles: {', '.join(known)}"
        )
    values: dict[str, Any] = {}
    if base and base != name:
        values = _values(base, tables, (*seen, name))
    elif name in PRESETS:
        values = PRESETS[name][0].model_dump(exclude_none=True)
    return values | (own.model_dump(exclude_none=True, exclude={"base"}) if own else {})


def _shares(name: str, text: str) -> dict[str, float]:
    """Return the shares in ``efficiency-by`` by prefix of an architecture."""
    shares: dict[str, float] = {}
    for item in text.split(","):
        prefix, _, value = item.partition("=")
        try:
            share = float(value)
        except ValueError:
            share = math.nan
        if not 1e-6 <= share <= 1:
            raise ValueError(
                f"profile.{name}.efficiency-by = {text!r}: {value!r} is no share from 1e-6 to 1"
            )
        shares[prefix.strip()] = share
    return shares
