"""Accuracy and loss of models, measured by the server or by clients."""
