"""What a run leaves on the server: journal, checkpoint, summary, and the lock on its folder."""
