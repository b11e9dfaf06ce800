"""The virtual clock: how long the rounds of a run would take on the clients' devices."""
