"""What server halves learn from clients' answers: on noise, on a public set, from features."""
