"""What drives Flower's own programs."""
