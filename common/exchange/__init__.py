"""Exchange between server and clients: payloads, their encoding, predictions and encryption."""
