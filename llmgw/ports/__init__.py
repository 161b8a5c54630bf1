"""Small interfaces between the shells, named for the direction data moves."""
