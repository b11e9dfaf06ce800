"""Definitions that the server half and the client half of a federation share."""
