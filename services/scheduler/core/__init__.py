"""Placement: classes, fairness, credit and tickets, without sockets or clocks."""
