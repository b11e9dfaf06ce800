"""Code of the app bundle that uses Flower's internals."""
