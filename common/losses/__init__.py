"""Losses as pure functions of tensors. They stop no gradient; the owner freezes a teacher."""
