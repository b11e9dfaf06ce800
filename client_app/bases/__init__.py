"""Base classes of client halves, one file for each kind of model that a client trains."""
