"""Between server and clients: census, exchange, replies, readmission."""
