"""Losses as pure functions of tensors. They stop no gradient; the caller detaches a teacher."""
