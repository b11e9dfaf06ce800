"""A run shown by programs for tracking experiments, while it goes on: ``track = "tensorboard"``.

A tracker only looks on. It changes no number, and whatever befalls it, the run goes on.
"""
