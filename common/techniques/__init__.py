"""Parts of methods that several methods share, on the server or on a client."""
