"""Secure sums: the server adds masked updates, and sees no single one (``secure.mode``)."""
