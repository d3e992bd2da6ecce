"""What the pytest plugin does once a test uses it."""
