"""What server and clients exchange: messages, their encoding, predictions, and sealing."""
