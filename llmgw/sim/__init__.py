"""A fleet in a test tube: the real loops and brains on fakes of the rest, in seeded virtual time; and scripts that play it."""
