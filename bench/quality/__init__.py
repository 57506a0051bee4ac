"""What `make quality` scores, how, and when it refuses."""
