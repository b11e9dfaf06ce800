"""What the server half and the client half of a federation must agree on."""
