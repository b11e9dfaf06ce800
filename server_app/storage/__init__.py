"""Files of a run on the server: journal, checkpoint, summary, status, and the folder's lock."""
