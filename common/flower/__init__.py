"""What travels in the app bundle and uses Flower's internals."""
