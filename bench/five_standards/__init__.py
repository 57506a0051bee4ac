"""What each of the five standards is worth, from the naive way up: `make five-standards`."""
