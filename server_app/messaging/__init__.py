"""Messages between server and clients: census, exchange, replies, readmission."""
