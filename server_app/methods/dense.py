"""DENSE, server half: the one-shot method without changes."""

from typing import final

from common.methods.dense import Options
from server_app.distillation.one_shot import OneShot


@final
class Dense(OneShot[Options]):
    """Server with s ← s − η_s ∇ T² KL(σ(z̄/T) ‖ σ(s/T)) on the pool of generated images."""
