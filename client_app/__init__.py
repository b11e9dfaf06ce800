"""Client half: a ClientApp process for each participant, on the machine that has its data."""
