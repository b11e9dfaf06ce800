"""Start and control Flower's own programs, with keys and certificates."""
