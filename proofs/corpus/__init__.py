"""The corpus of public bugs: rows of an index, scenarios that show them, and whether the monitor catches each."""
