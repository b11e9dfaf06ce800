"""A researcher's own method, model, data set and partition."""
