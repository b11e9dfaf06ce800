"""The virtual clock: times of the clients' jobs on their devices, and when a round ends."""
