"""Base classes of client halves, by the model that the client trains."""
