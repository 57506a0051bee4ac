"""A public message becomes a checked request, or an error that names the field."""
