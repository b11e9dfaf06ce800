"""Halfway: federated averaging on smoothed labels, whose server goes part of the way."""
