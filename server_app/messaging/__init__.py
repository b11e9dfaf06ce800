"""Messages between server and clients: census, membership, exchange, replies, readmission."""
