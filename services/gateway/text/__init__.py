"""A choice's text and end as a pure function of its ids."""
