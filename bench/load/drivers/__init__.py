"""How the load tool talks to what it measures, by the scheme of the target."""
