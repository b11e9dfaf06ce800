"""Losses as pure functions of tensors that stop no gradient: the caller detaches a teacher."""
