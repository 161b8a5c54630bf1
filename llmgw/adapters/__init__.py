"""One module per outside thing; none knows another."""
