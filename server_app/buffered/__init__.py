"""Asynchronous rounds (``mode = "buffered"``): a step whenever K updates have arrived."""
