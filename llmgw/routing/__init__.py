"""Chooses an endpoint, or refuses a request with status and reason. No I/O, no clock, no source of chance of its own."""
