"""Federations on separate machines: nodes and submitted runs."""
