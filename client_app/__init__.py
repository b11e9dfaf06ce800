"""The client half: one ClientApp process for each participant, next to its data."""
