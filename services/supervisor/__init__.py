"""Runs the whole mesh on one machine: child processes, one log, restarts, an orderly end.

Knows how to start the services and when they are ready; nothing of what they say to each other.
"""
