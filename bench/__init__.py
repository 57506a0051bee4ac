"""Measurements; none is a test."""
