"""Settings of asynchronous rounds on devices of three speeds."""

from typing import Any

SPEEDS = {"fast": 1e9, "middle": 1e8, "slow": 2e7}
PROFILES: dict[str, Any] = {"profiles": ",".join(SPEEDS), "mode": "buffered"}
PROFILES |= {f"profile__{name}__flops": flops for name, flops in SPEEDS.items()}
PROFILES |= {f"profile__{name}__network": "lan" for name in SPEEDS}
