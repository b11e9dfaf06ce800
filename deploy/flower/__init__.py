"""Start and control Flower's own programs."""
