"""Files of a run on the server: journal, checkpoint, summary, status, and the lock on its folder."""
