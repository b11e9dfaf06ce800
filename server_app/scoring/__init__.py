"""Accuracy, loss and drift of models, measured by the server or by clients."""
