"""Federations on separate machines: certificates, keys, nodes and submitted runs."""
