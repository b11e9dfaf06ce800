"""What a server makes of several clients' predictions on the same public images."""
